//! Which stored tensors make up which matrix, in Meta's and in Hugging Face's names.
