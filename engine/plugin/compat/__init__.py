"""Every name of vLLM's internals that the plugin uses, and the hooks made of them, are in this package.

Read in and run against vLLM 0.32.0. vLLM promises none of these names, so that `hooks.moved` looks for each before a
hook is put in place, and a vLLM of another version is left alone. To take in a new version: run the tests of
this room against it, mend what they name, add it to `hooks.KNOWN`.
"""
