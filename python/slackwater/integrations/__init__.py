"""Slackwater inside serving engines: `sglang`, `lmcache` and `vllm`, each a module that the engine's configuration names.

A module imports its engine, and nothing here imports a module before an engine asks for it.
"""
