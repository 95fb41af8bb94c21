//! SentencePiece `.model` files, checked before the library sees them.
