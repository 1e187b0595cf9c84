"""Agent frameworks in process, without HTTP. Each module needs its framework installed."""
