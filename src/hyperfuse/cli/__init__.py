"""The command line: parse, call one function, print. No logic lives here.

Every module of this folder defines plain functions with typer annotations; `app.py` lists them all.
"""
