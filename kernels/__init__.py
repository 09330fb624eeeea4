"""Attention and cache kernels. They know tensors only: nothing of the engine, no events, no page."""
