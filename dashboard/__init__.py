"""The page a person on call looks at. Reads `/api/v1` over HTTP and imports no other room."""
