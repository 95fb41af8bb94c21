//! A tokenizer whose ids can be read, and its decoding written down a second time.

use llamabi::engine::Prompt;
use llamabi::tokenizer::{Bound, Encoded, Piece, Run, Tokenizer};
use llamabi::{Result, Token};
use std::sync::LazyLock;

pub const BOS: Token = 1;
pub const EOS: Token = 2;
/// 3..=28 are the letters.
pub const WORDS: [(Token, &str); 6] = [
    (29, " "),
    (30, "the"),
    (31, " he"),
    (32, "é"),
    (33, "日本"),
    (34, "ab"),
];
/// 40..296 are the bytes.
pub const BYTE: Token = 40;
/// The tokenizer's ids; the model has four more.
pub const IDS: usize = 296;
pub const VOCAB: usize = 300;

pub struct Toy;

impl Tokenizer for Toy {
    fn vocab_size(&self) -> usize {
        IDS
    }
    fn bos_id(&self) -> Token {
        BOS
    }
    fn eos_id(&self) -> Token {
        EOS
    }
    fn pad_id(&self) -> Token {
        -1
    }
    fn encode_runs(
        &self,
        text: &str,
        _: &[Run],
        tokens: &mut Vec<Token>,
        _: Bound<'_>,
    ) -> Result<Encoded> {
        tokens.extend(ids(text));
        Ok(Encoded::Whole)
    }
    fn decode(&self, tokens: &[Token]) -> Result<String> {
        Ok(decode(tokens).0)
    }
    fn piece(&self, token: Token) -> Piece<'_> {
        const LETTERS: &str = "abcdefghijklmnopqrstuvwxyz";
        match token {
            3..=28 => Piece::Text(&LETTERS[token as usize - 3..][..1]),
            29..=34 => Piece::Text(WORDS[token as usize - 29].1),
            40..296 => Piece::Byte((token - BYTE) as u8),
            _ => Piece::Control,
        }
    }
    fn token_bytes_with_nul(&self, token: Token) -> &[u8] {
        static BYTES: LazyLock<Vec<Vec<u8>>> = LazyLock::new(|| {
            let bytes = |token| match Toy.piece(token) {
                Piece::Text(text) => [text.as_bytes(), &[0]].concat(),
                Piece::Byte(byte) => vec![byte, 0],
                _ => vec![0],
            };
            (0..IDS as Token).map(bytes).collect()
        });
        &BYTES[token as usize]
    }
    fn strips_leading_space(&self) -> bool {
        true
    }
}

/// Letters and spaces as themselves, all else as bytes.
pub fn ids(text: &str) -> Vec<Token> {
    text.bytes()
        .map(|byte| match byte {
            b'a'..=b'z' => Token::from(byte - b'a') + 3,
            b' ' => 29,
            byte => BYTE + Token::from(byte),
        })
        .collect()
}

/// BOS and the text.
pub fn prompt(text: &str) -> Prompt {
    let mut tokens = vec![BOS];
    tokens.extend(ids(text));
    Prompt::Tokens(tokens)
}

/// The text of `tokens`, and how many bytes of it no further token can change. From scratch every
/// time, and so unlike the streaming detokeniser.
pub fn decode(tokens: &[Token]) -> (String, usize) {
    let (mut text, mut certain, mut run) = (String::new(), 0, Vec::new());
    let mut first = true;
    let flush = |run: &mut Vec<u8>, text: &mut String| {
        let mut certain = text.len();
        let mut rest = &run[..];
        while !rest.is_empty() {
            let good = (1..=4.min(rest.len())).find(|n| std::str::from_utf8(&rest[..*n]).is_ok());
            match good {
                Some(n) => text.push_str(std::str::from_utf8(&rest[..n]).unwrap()),
                None => text.push('\u{FFFD}'),
            }
            let incomplete = good.is_none()
                && std::str::from_utf8(rest)
                    .is_err_and(|e| e.valid_up_to() == 0 && e.error_len().is_none());
            if incomplete {
                text.extend((1..rest.len()).map(|_| '\u{FFFD}'));
                run.clear();
                return certain;
            }
            rest = &rest[good.unwrap_or(1)..];
            certain = text.len();
        }
        run.clear();
        certain
    };
    for token in tokens {
        match Toy.piece(*token) {
            Piece::Byte(byte) => {
                run.push(byte);
                first = false;
            }
            Piece::Text(piece) => {
                flush(&mut run, &mut text);
                text.push_str(if first {
                    piece.strip_prefix(' ').unwrap_or(piece)
                } else {
                    piece
                });
                first = false;
            }
            Piece::Literal(_) | Piece::Bytes(_) => unreachable!("the toy has none"),
            // A character cannot continue behind a control.
            Piece::Control => {
                flush(&mut run, &mut text);
            }
        }
        certain = text.len();
    }
    if !run.is_empty() {
        certain = flush(&mut run, &mut text);
    }
    (text, certain)
}
