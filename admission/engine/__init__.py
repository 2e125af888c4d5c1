"""The decisions of Muster: who runs where and when. Values in, values out; no I/O, no clock, no randomness."""
