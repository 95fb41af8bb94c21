//! Random texts, ids and bytes, against the library.

use super::*;

/// Ids that start a text with controls, `<unk>` and spaces, and break characters apart.
fn ids(model: usize) -> impl Strategy<Value = Vec<Token>> {
    let tokenizer = &BOTH[model].ours;
    let n = tokenizer.vocab_size() as Token;
    let of_kind = |keep: &dyn Fn(Piece<'_>) -> bool| -> Vec<Token> {
        (0..n).filter(|&id| keep(tokenizer.piece(id))).collect()
    };
    let bytes = of_kind(&|p| matches!(p, Piece::Byte(_)));
    let special = of_kind(&|p| matches!(p, Piece::Control | Piece::Literal(_)));
    let space = of_kind(&|p| matches!(p, Piece::Text(t) if t.starts_with(' ') && t.len() < 4));
    assert!(bytes.len() == 256 && special.len() >= 3 && !space.is_empty());
    let kind = prop_oneof![
        2 => Just(Kind::Any),
        6 => Just(Kind::Byte),
        2 => Just(Kind::Special),
        3 => Just(Kind::Space),
    ];
    prop::collection::vec((kind, any::<prop::sample::Index>()), 0..40).prop_map(move |picks| {
        picks
            .into_iter()
            .map(|(kind, index)| match kind {
                Kind::Any => index.index(n as usize) as Token,
                Kind::Byte => *index.get(&bytes),
                Kind::Special => *index.get(&special),
                Kind::Space => *index.get(&space),
            })
            .collect()
    })
}

/// Bytes of real characters, cut and spliced: long valid runs with errors in them.
fn broken_utf8() -> impl Strategy<Value = Vec<u8>> {
    let chars = prop::collection::vec(any::<char>(), 0..12);
    let edits = prop::collection::vec((any::<prop::sample::Index>(), any::<u8>(), 0..3), 0..6);
    (chars, edits).prop_map(|(chars, edits)| {
        let mut bytes = chars.into_iter().collect::<String>().into_bytes();
        for (index, byte, action) in edits {
            let at = index.index(bytes.len() + 1);
            match action {
                0 => bytes.insert(at, byte),
                1 => bytes.truncate(at),
                _ => drop(bytes.splice(at..(at + 1).min(bytes.len()), [byte])),
            }
        }
        bytes
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1500, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn llama2_streams_what_the_library_decodes(ids in ids(0)) {
        BOTH[0].agree_on_ids(&ids);
    }

    #[test]
    fn small_streams_what_the_library_decodes(ids in ids(1)) {
        BOTH[1].agree_on_ids(&ids);
    }

    #[test]
    fn bytes_stream_as_the_library_decodes_them(bytes in broken_utf8()) {
        let ids: Vec<Token> = bytes.iter().map(|&b| Token::from(b) + 3).collect();
        BOTH.iter().for_each(|both| both.agree_on_ids(&ids));
    }

    #[test]
    fn texts_encode_as_the_library_does(text in prop::collection::vec(prop_oneof![
        any::<char>(), Just(' '), Just('\u{2581}'), Just('\n'), prop::char::range('a', 'e'), Just('\0')
    ], 0..60)) {
        let text: String = text.into_iter().collect();
        BOTH.iter().for_each(|both| both.agree_on(&text));
    }
}
