"""The laboratory: everything that studies and trains. The core that serves answers never imports it."""
