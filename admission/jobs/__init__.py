"""Kinds of jobs as data: what each asks for, how it is started with its pins and taken back, and how it is held.

Pure functions on the JSON of the API: dicts in, engine values and patches out. `kinds` reads a Job or JobSet,
`workload` writes the Workload that stands for it, `requests` and `values` turn API objects into the engine's values,
`pins` writes and takes back a start, `hold` says what the API server must change and refuse on the way in.
"""
