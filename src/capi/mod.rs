//! The C API. No logic: guard, convert, call [`crate::Llama`], convert.
