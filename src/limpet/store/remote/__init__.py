"""A store on a server: the protocols of `store` over one websocket, or over POST."""
