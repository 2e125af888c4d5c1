"""What users write: the eight kinds (`kinds`), their CRDs (`crd`), the configuration file (`config`).

Start at `schema`, which says how one demand becomes a pydantic validator and a rule of the API server.
"""
