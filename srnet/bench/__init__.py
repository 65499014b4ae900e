"""Times networks, the attention operator and other projects' networks against what the machine can do at best."""
