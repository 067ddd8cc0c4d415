"""A server of the Model Context Protocol (extra `mcp`): the operations of a service as tools."""
