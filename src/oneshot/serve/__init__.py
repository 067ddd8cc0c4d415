"""Serving a reasoner over HTTP: REST API and page; needs the extra `serve`."""
