//! Dialogs in Meta's format, against the reference's token ids.

use crate::tokenizers::{WIDE, all_cases};
use llamabi::chat::{self, Encoding, Message, Role};
use llamabi::tokenizer::{self, Bound, Tokenizer};
use llamabi::{Cancel, Error, Result, Token};
use std::path::Path;
use std::sync::{Arc, LazyLock};

static TOKENIZER: LazyLock<Arc<dyn Tokenizer>> =
    LazyLock::new(|| tokenizer::open(Path::new(WIDE)).unwrap());

fn system(content: &str) -> Message<'_> {
    Message {
        role: Role::System,
        content,
    }
}

fn user(content: &str) -> Message<'_> {
    Message {
        role: Role::User,
        content,
    }
}

fn assistant(content: &str) -> Message<'_> {
    Message {
        role: Role::Assistant,
        content,
    }
}

fn encode_dialog(dialog: &[Message<'_>]) -> Result<Vec<Token>> {
    encode_with(&**TOKENIZER, dialog)
}

fn encode_with(tokenizer: &dyn Tokenizer, dialog: &[Message<'_>]) -> Result<Vec<Token>> {
    match chat::encode_dialog(tokenizer, dialog, Bound::default())? {
        Encoding::Tokens(tokens) => Ok(tokens),
        other => panic!("{other:?}"),
    }
}

fn is_unsafe(dialog: &[Message<'_>]) -> bool {
    chat::encode_dialog(&**TOKENIZER, dialog, Bound::default()).unwrap() == Encoding::Unsafe
}

/// BOS, the text, and EOS where it says so.
fn turn(text: &str, eos: bool) -> Vec<Token> {
    let mut tokens = vec![1];
    tokens.extend(TOKENIZER.encode(text).unwrap());
    tokens.extend(eos.then_some(2));
    tokens
}

#[test]
fn reference_cases() {
    for cases in all_cases() {
        let tokenizer = tokenizer::open(&cases.tokenizer).unwrap();
        for case in cases.dialogs() {
            let message = |m: &'_ serde_json::Value| {
                let role = Role::named(m["role"].as_str().unwrap()).unwrap();
                (role, m["content"].as_str().unwrap().to_owned())
            };
            let dialog: Vec<_> = case["dialog"]
                .as_array()
                .unwrap()
                .iter()
                .map(message)
                .collect();
            let dialog: Vec<Message<'_>> = dialog
                .iter()
                .map(|(role, content)| Message {
                    role: *role,
                    content,
                })
                .collect();
            let expected: Vec<Token> =
                serde_json::from_value(case["prompt_tokens"].clone()).unwrap();
            assert_eq!(
                encode_with(&*tokenizer, &dialog).unwrap(),
                expected,
                "{dialog:?}"
            );
        }
    }
}

#[test]
fn system_user_assistant_user() {
    let dialog = [
        system(" Be brief. "),
        user(" Hi "),
        assistant(" Hello\n"),
        user("Bye"),
    ];
    let expected = [
        turn(
            "[INST] <<SYS>>\n Be brief. \n<</SYS>>\n\n Hi [/INST] Hello ",
            true,
        ),
        turn("[INST] Bye [/INST]", false),
    ];
    assert_eq!(encode_dialog(&dialog).unwrap(), expected.concat());
}

#[test]
fn contents_are_stripped_as_python_does() {
    let dialog = [
        user("\u{1c}\u{1f}\u{a0} x \u{3000}\u{85}"),
        assistant("\u{2028}y\u{1d}"),
        user(""),
    ];
    let expected = [
        turn("[INST] x [/INST] y ", true),
        turn("[INST]  [/INST]", false),
    ];
    assert_eq!(encode_dialog(&dialog).unwrap(), expected.concat());
    // The system message goes in first, so only the end of the first user message is bare.
    let dialog = [system(""), user("\u{1c} x \u{1c}")];
    let expected = turn("[INST] <<SYS>>\n\n<</SYS>>\n\n\u{1c} x [/INST]", false);
    assert_eq!(encode_dialog(&dialog).unwrap(), expected);
}

#[test]
fn special_tags_are_unsafe_in_any_message() {
    for tag in ["[INST]", "[/INST]", "<<SYS>>", "<</SYS>>"] {
        let text = format!("a{tag}b");
        assert!(is_unsafe(&[user(&text)]), "{tag}");
        assert!(is_unsafe(&[system(&text), user("")]), "{tag}");
        assert!(is_unsafe(&[user(""), assistant(&text), user("")]), "{tag}");
        assert!(is_unsafe(&[user(""), assistant(""), user(&text)]), "{tag}");
    }
    assert!(!is_unsafe(&[
        system("[inst] [ INST]"),
        user("<<SYS> <SYS>>"),
        assistant("<</SYS>"),
        user("[/inst]"),
    ]));
    // Roles come first, as in the reference.
    let error = encode_dialog(&[assistant("[INST]")]).unwrap_err();
    assert!(matches!(error, Error::InvalidArgument { .. }), "{error}");
}

#[test]
fn a_bound_ends_the_encoding_early() {
    let dialog = [user("one two three four"), assistant("five"), user("six")];
    let len = encode_dialog(&dialog).unwrap().len();
    let within = |max| {
        let bound = Bound {
            max_tokens: Some(max),
            cancel: None,
        };
        chat::encode_dialog(&**TOKENIZER, &dialog, bound).unwrap()
    };
    assert!(matches!(within(len), Encoding::Tokens(tokens) if tokens.len() == len));
    for max in 0..len {
        assert!(
            matches!(within(max), Encoding::TooLong { least, .. } if max < least && least <= len)
        );
    }
    let cancel = Cancel::new();
    cancel.trigger();
    let bound = Bound {
        max_tokens: None,
        cancel: Some(&cancel),
    };
    let error = chat::encode_dialog(&**TOKENIZER, &dialog, bound).unwrap_err();
    assert!(matches!(error, Error::Cancelled), "{error}");
}

#[test]
fn roles_out_of_order_are_named() {
    let (s, u, a) = (system("s"), user("u"), assistant("a"));
    let cases: [(&[Message<'_>], &[&str]); 9] = [
        (&[], &["dialog is empty"]),
        (&[s], &["message 0", "is system", "must be user"]),
        (&[a], &["message 0", "is assistant", "must be user"]),
        (&[u, u], &["message 1", "is user", "must be assistant"]),
        (
            &[u, a],
            &["message 1", "the last", "is assistant", "must be user"],
        ),
        (&[s, a, u], &["message 1", "is assistant", "must be user"]),
        (&[s, s, u], &["message 1", "is system", "must be user"]),
        (
            &[u, a, s, a, u],
            &["message 2", "is system", "must be user"],
        ),
        (
            &[s, u, a],
            &["message 2", "the last", "is assistant", "must be user"],
        ),
    ];
    for (dialog, words) in cases {
        let error = encode_dialog(dialog).unwrap_err();
        assert!(matches!(error, Error::InvalidArgument { .. }), "{error:?}");
        let message = error.to_string();
        assert!(
            words.iter().all(|word| message.contains(word)),
            "{message:?} lacks one of {words:?}"
        );
    }
}
