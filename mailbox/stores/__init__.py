"""The stores: one protocol (`store`), one module a kind of store, the schemas in `schema/`."""
