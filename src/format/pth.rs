//! PyTorch's `.pth`: a stored zip whose `data.pkl` describes the tensors and whose `data/N` hold them.
