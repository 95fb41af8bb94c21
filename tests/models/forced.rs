//! Speculation in a grammar, with the model that the project ships: what the grammar leaves no
//! choice about is drafted, other drafts are cut where it refuses them, and the bits are those
//! without.

use crate::drafts::{model_beside, run, said};
use llamabi::engine::request::Bias;
use llamabi::engine::{GenerateOptions, Speculation};
use llamabi::grammar::Source;
use llamabi::{Dtype, Llama, Token};
use std::sync::Arc;

const PROMPTS: [&str; 3] = ["Once upon a time", "Lily has a dog. Lily", "Q"];

/// Every value is bounded, and no space may stand between them.
const CHILD: &str = r#"{"type":"object","properties":{
    "the child's name":{"type":"string","maxLength":12},
    "favourite colour":{"enum":["dark green","dark blue","yellow"]},
    "how many brothers and sisters":{"type":"integer","minimum":0,"maximum":20},
    "has a dog at home":{"type":"boolean"}},
    "required":["the child's name","favourite colour","how many brothers and sisters","has a dog at home"],
    "additionalProperties":false,"x-guidance":{"whitespace_flexible":false}}"#;
/// As most schemas are: spaces may stand where JSON has them.
const SPACED: &str = r#"{"type":"object","properties":{"name":{"type":"string","maxLength":9},
    "age":{"type":"integer"}},"required":["name","age"],"additionalProperties":false}"#;
const STORY: &str = "start: \"once there was a \" /[a-z]{3,6}/ \" that lived in the \" place \".\"\n\
    place: \"forest\" | \"garden\" | \"water\"";

fn of_grammar(model: &Llama, source: Source<'_>) -> GenerateOptions {
    GenerateOptions {
        grammar: Some(Arc::new(model.grammar(source).unwrap())),
        logprobs: true,
        seed: 5,
        temperature: 1.0,
        max_gen_len: Some(120),
        ..GenerateOptions::default()
    }
}

/// What the choice of a token can hang on.
fn kinds(plain: &GenerateOptions) -> Vec<GenerateOptions> {
    let bias = |token| Bias { token, bias: 2.0 };
    vec![
        GenerateOptions {
            temperature: 0.0,
            ..plain.clone()
        },
        plain.clone(),
        GenerateOptions {
            repetition_penalty: 1.3,
            presence_penalty: 0.5,
            frequency_penalty: 0.2,
            logit_bias: (300..340).map(bias).collect(),
            echo: true,
            ..plain.clone()
        },
        GenerateOptions {
            num_return_sequences: 2,
            min_gen_len: 9,
            stop: vec!["blue".into(), "gard".into()],
            max_gen_len: Some(23),
            ..plain.clone()
        },
    ]
}

#[test]
fn what_a_grammar_forces_changes_no_bit() {
    let (mut drafted, mut accepted) = (0, 0);
    for (dtype, draft) in [(None, None), (Some(Dtype::Int8), Some(Dtype::Int4))] {
        let model = model_beside(dtype, draft);
        for source in [
            Source::JsonSchema(CHILD),
            Source::JsonSchema(SPACED),
            Source::Json,
            Source::Lark(STORY),
            Source::Regex("(ab){3}|The (big|small) dog (ran|sat)( and (ran|sat)){2}\\."),
            Source::Choice("[\"never in a thousand years\", \"never again\"]"),
        ] {
            for plain in kinds(&of_grammar(&model, source)) {
                let want = run(&model, &PROMPTS, &plain);
                let words = want.iter().flat_map(|sequence| sequence.tokens.clone());
                let predicted: Vec<Token> = words.collect();
                for (speculation, draft_len) in [
                    (Speculation::Auto, 0),
                    (Speculation::Auto, 1),
                    (Speculation::Auto, 16),
                    (Speculation::NGram, 5),
                    (Speculation::Draft, 4),
                ] {
                    if speculation == Speculation::Draft && draft.is_none() {
                        continue;
                    }
                    let drafts = GenerateOptions {
                        speculation,
                        draft_len,
                        predicted: match speculation {
                            Speculation::NGram => predicted.clone(),
                            _ => Vec::new(),
                        },
                        ..plain.clone()
                    };
                    let got = run(&model, &PROMPTS, &drafts);
                    for (got, want) in got.iter().zip(&want) {
                        assert_eq!(
                            said(got),
                            said(want),
                            "{source:?} {speculation:?} {draft_len}"
                        );
                        let stats = &got.stats;
                        assert!(stats.accepted_tokens <= stats.drafted_tokens);
                        drafted += stats.drafted_tokens;
                        accepted += stats.accepted_tokens;
                    }
                    let n = plain.num_return_sequences;
                    let alone = run(&model, &PROMPTS[1..2], &drafts);
                    if plain.temperature == 0.0 {
                        assert_eq!(said(&alone[0]), said(&want[n]), "alone: {source:?}");
                    }
                }
            }
        }
        assert_eq!(model.timings().pages_used, 0);
    }
    assert!(
        accepted > 2000 && drafted > accepted,
        "{accepted} of {drafted}"
    );
}

/// The model has learnt stories, so it spells keys in its own way, and often another way than the
/// tokenizer; each first token that is right saves a step all the same.
#[test]
fn forced_tokens_save_steps() {
    let model = model_beside(None, None);
    for (source, most_steps) in [
        (Source::JsonSchema(CHILD), 0.65),
        (Source::Lark(STORY), 0.6),
    ] {
        // As many as there are, whatever they are worth: then nothing hangs on times.
        let drafts = GenerateOptions {
            temperature: 0.0,
            speculation: Speculation::Auto,
            draft_len: 4,
            ..of_grammar(&model, source)
        };
        let (mut tokens, mut steps) = (0, 0);
        for prompt in PROMPTS {
            let before = model.timings();
            let got = run(&model, &[prompt], &drafts);
            let after = model.timings();
            let (stats, n) = (&got[0].stats, got[0].tokens.len() as u64);
            steps += after.steps - before.steps;
            tokens += n;
            // Each draft that is right is a token without a step of its own.
            assert!(after.steps - before.steps + u64::from(stats.accepted_tokens) <= n + 1);
            let masks = after.masks - before.masks;
            assert!(masks > n && masks <= n + 1 + u64::from(stats.drafted_tokens));
        }
        assert!(
            steps as f64 <= most_steps * tokens as f64,
            "{steps} steps for {tokens} tokens: {source:?}"
        );
    }
}
