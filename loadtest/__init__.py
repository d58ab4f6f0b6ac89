"""The load test: a web service around an agent, hundreds of requests a second, every acknowledged turn looked up.

``python -m loadtest --help``; how to read what it prints: docs/loadtest.md. In the order in which a request meets them:
``scripts`` (what is said), ``mix`` (what is asked, when, of which thread), ``locustfile`` (asks), ``service`` and
``agent`` (answer), ``journal`` (what was answered), ``verify`` (is it stored). ``runner`` starts and stops
everything, ``sampling`` and ``faults`` go on beside it, ``results``, ``plots`` and ``report`` show what came out.
"""
