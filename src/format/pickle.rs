//! An interpreter for the few pickle opcodes that `torch.save` writes for a dict of tensors. It executes nothing.
