//! Generation in a grammar, with the model that the project ships: the returned text is of the
//! language, and the same bytes alone and in company.

use llamabi::engine::request::Bias;
use llamabi::engine::{Deciders, Event, FinishReason, GenerateOptions, Next, Prompt, Question};
use llamabi::grammar::{Grammar, MAX_LARK_LEVELS, MAX_SCHEMA_LEVELS, Source};
use llamabi::llama::Sequence;
use llamabi::{BuildOptions, Device, Error, Llama};
use serde_json::Value;
use std::sync::Arc;

const PROMPTS: [&str; 3] = ["Once upon a time", "Lily has a dog. Lily", "Q"];

fn model() -> Llama {
    let options = BuildOptions {
        max_seq_len: 256,
        max_batch_size: 4,
        device: Device::Cpu,
        ..BuildOptions::default()
    };
    Llama::build("demo/meta".as_ref(), None, &options, &mut |_| true).unwrap()
}

fn grammar(model: &Llama, source: Source<'_>) -> Arc<Grammar> {
    Arc::new(model.grammar(source).unwrap())
}

fn sampled(grammar: Option<&Arc<Grammar>>, seed: u64) -> GenerateOptions {
    GenerateOptions {
        grammar: grammar.cloned(),
        seed,
        temperature: 1.0,
        top_p: 1.0,
        max_gen_len: Some(200),
        ..GenerateOptions::default()
    }
}

fn prompts(model: &Llama, texts: &[&str]) -> Vec<Prompt> {
    model.text_prompts(texts, None).unwrap()
}

fn run(model: &Llama, text: &str, options: GenerateOptions) -> llamabi::Result<Sequence> {
    let done = model.generate(prompts(model, &[text]), options, &mut |_| true)?;
    Ok(done.sequences.into_iter().next().unwrap())
}

/// Bounded in every way: without the last key, a model may write spaces for ever.
const PERSON: &str = r#"{"type":"object","properties":{
    "name":{"type":"string","maxLength":12},"age":{"type":"integer","minimum":0,"maximum":150},
    "tags":{"type":"array","items":{"enum":["red","green"]},"maxItems":2}},
    "required":["name","age"],"additionalProperties":false,
    "x-guidance":{"whitespace_flexible":false}}"#;
const LIST: &str = r#"{"type":"array","minItems":1,"maxItems":3,"items":{"anyOf":[
    {"type":"boolean"},{"type":"null"},{"type":"string","pattern":"^[a-f]{2,4}$"}]},
    "x-guidance":{"whitespace_flexible":false}}"#;

fn is_person(v: &Value) -> bool {
    let Some(o) = v.as_object() else { return false };
    let name = o.get("name").and_then(Value::as_str);
    let age = o.get("age").and_then(Value::as_i64);
    let tags = o.get("tags").is_none_or(|tags| {
        let tags = tags.as_array().unwrap();
        tags.len() <= 2 && tags.iter().all(|t| t == "red" || t == "green")
    });
    o.keys().all(|k| ["name", "age", "tags"].contains(&&**k))
        && name.is_some_and(|name| name.chars().count() <= 12)
        && age.is_some_and(|age| (0..=150).contains(&age))
        && tags
}

fn is_list(v: &Value) -> bool {
    let is_item = |v: &Value| match v {
        Value::Bool(_) | Value::Null => true,
        Value::String(s) => {
            (2..=4).contains(&s.len()) && s.bytes().all(|b| (b'a'..=b'f').contains(&b))
        }
        _ => false,
    };
    v.as_array()
        .is_some_and(|a| (1..=3).contains(&a.len()) && a.iter().all(is_item))
}

/// LLAMABI_TEST_ANSWERS asks for more than these.
#[test]
fn answers_in_a_bounded_schema_all_parse_and_none_is_cut() {
    let answers = std::env::var("LLAMABI_TEST_ANSWERS");
    let answers: u64 = answers.map_or(40, |n| n.parse().unwrap());
    let model = model();
    for (schema, is_valid) in [(PERSON, is_person as fn(&Value) -> bool), (LIST, is_list)] {
        let grammar = grammar(&model, Source::JsonSchema(schema));
        for seed in (1..=answers).step_by(4) {
            let four = GenerateOptions {
                num_return_sequences: 4,
                ..sampled(Some(&grammar), seed)
            };
            let prompt = prompts(&model, &[PROMPTS[seed as usize % 3]]);
            let done = model.generate(prompt, four, &mut |_| true).unwrap();
            for answer in done.sequences {
                let value: Value = serde_json::from_str(&answer.text)
                    .unwrap_or_else(|e| panic!("{:?}: {e}", answer.text));
                assert!(is_valid(&value), "{}", answer.text);
                assert_eq!(answer.finish, FinishReason::Stop, "{}", answer.text);
            }
        }
    }
    let timings = model.timings();
    assert!(timings.masks > answers * 10 && timings.mask_ms > 0.0);
    assert!(timings.mask_wait_ms >= 0.0 && timings.mask_wait_ms.is_finite());
}

#[test]
fn company_changes_no_byte() {
    let model = model();
    let grammars = [
        None,
        Some(grammar(&model, Source::JsonSchema(PERSON))),
        Some(grammar(&model, Source::Regex("([a-z]{2,6} ){3}[.!]"))),
        Some(grammar(
            &model,
            Source::Lark("start: (\"a \" | \"the \") /[a-z]+/ \".\""),
        )),
    ];
    let options = |i: usize| GenerateOptions {
        max_gen_len: Some(40),
        logprobs: true,
        repetition_penalty: 1.2,
        temperature: if i.is_multiple_of(3) { 0.0 } else { 1.0 },
        ..sampled(grammars[i % 4].as_ref(), i as u64 + 1)
    };
    let alone: Vec<Sequence> = (0..12)
        .map(|i| run(&model, PROMPTS[i % 3], options(i)).unwrap())
        .collect();
    let streams: Vec<_> = (0..12)
        .map(|i| {
            model
                .stream(prompts(&model, &[PROMPTS[i % 3]]), options(i))
                .unwrap()
        })
        .collect();
    for (i, stream) in streams.iter().enumerate() {
        let (mut tokens, mut text, mut logprobs) = (Vec::new(), String::new(), Vec::new());
        loop {
            match stream.next(None).unwrap() {
                Next::Event(Event::Token(event)) => {
                    tokens.push(event.token);
                    logprobs.push(event.logprob.to_bits());
                    text += &event.text;
                }
                Next::Event(Event::Finish(end)) => {
                    text += &end.text;
                    assert_eq!(end.reason, alone[i].finish);
                }
                Next::Done => break,
                other => panic!("{other:?}"),
            }
        }
        let bits: Vec<u32> = alone[i].logprobs.iter().map(|x| x.to_bits()).collect();
        assert_eq!((&tokens, &text), (&alone[i].tokens, &alone[i].text), "{i}");
        assert_eq!(logprobs, bits, "{i}");
    }
    // Samples of a prompt are as many prompts, each with a place of its own in the grammar.
    let grammar = grammars[1].as_ref();
    let repeated = vec![PROMPTS[1]; 4];
    let as_prompts = model.generate(prompts(&model, &repeated), sampled(grammar, 5), &mut |_| {
        true
    });
    let samples = GenerateOptions {
        num_return_sequences: 4,
        ..sampled(grammar, 5)
    };
    let samples = model.generate(prompts(&model, &repeated[..1]), samples, &mut |_| true);
    let texts = |done: llamabi::Result<llamabi::llama::Completion>| -> Vec<String> {
        done.unwrap()
            .sequences
            .into_iter()
            .map(|s| s.text)
            .collect()
    };
    assert_eq!(texts(samples), texts(as_prompts));
}

#[test]
fn a_text_ends_where_its_grammar_does() {
    let model = model();
    let one = |source: Source<'_>, change: &dyn Fn(&mut GenerateOptions)| {
        let grammar = grammar(&model, source);
        let mut options = sampled(Some(&grammar), 3);
        change(&mut options);
        run(&model, PROMPTS[0], options).unwrap()
    };
    let end = one(Source::Regex("(ab){3}"), &|_| ());
    assert_eq!((&*end.text, end.finish), ("ababab", FinishReason::Stop));
    // The last token that fits completes the text: that is no cut.
    let exactly = end.tokens.len();
    let fits = one(Source::Regex("(ab){3}"), &|o| o.max_gen_len = Some(exactly));
    assert_eq!((&*fits.text, fits.finish), ("ababab", FinishReason::Stop));
    let cut = one(Source::Regex("(ab){3}"), &|o| {
        o.max_gen_len = Some(exactly - 1)
    });
    assert!(cut.text.len() < 6 && cut.finish == FinishReason::Length);
    let stopped = one(Source::Regex("(ab){3}"), &|o| o.stop = vec!["ba".into()]);
    assert_eq!(
        (&*stopped.text, stopped.finish),
        ("a", FinishReason::StopString)
    );
    let choice = one(Source::Choice("[\"yes\", \"no\"]"), &|o| {
        o.temperature = 0.0
    });
    assert!(["yes", "no"].contains(&&*choice.text) && choice.finish == FinishReason::Stop);
    let echoed = one(Source::Regex("x{2}"), &|o| o.echo = true);
    let behind = echoed.text.strip_prefix(PROMPTS[0]).unwrap();
    assert!(["xx", " xx"].contains(&behind), "{behind:?}");
    let scored = one(Source::Regex("x{2}"), &|o| {
        (o.echo, o.logprobs) = (true, true)
    });
    assert_eq!(scored.text, echoed.text);
    // A text that may end but need not: where the model ends it, or at the limit.
    for seed in 1..=10 {
        let some = one(Source::Regex("[a-z ,.]*"), &|o| {
            (o.seed, o.max_gen_len) = (seed, Some(60))
        });
        assert!(
            some.text
                .bytes()
                .all(|b| b.is_ascii_lowercase() || b" ,.".contains(&b)),
            "{some:?}"
        );
        assert!([FinishReason::Stop, FinishReason::Length].contains(&some.finish));
    }
}

#[test]
fn what_cannot_be_is_refused() {
    let (model, other) = (model(), model());
    let refusal = |options: GenerateOptions| match run(&model, PROMPTS[0], options) {
        Err(error @ (Error::InvalidArgument { .. } | Error::Grammar(_))) => error.to_string(),
        outcome => panic!("{outcome:?}"),
    };
    let own = grammar(&model, Source::Json);
    let ignoring = GenerateOptions {
        ignore_eos: true,
        ..sampled(Some(&own), 1)
    };
    assert!(refusal(ignoring).starts_with("IGNORE_EOS is set, must be off"));
    let foreign = grammar(&other, Source::Json);
    let sentence = "grammar is another handle's, must be one that was made for this handle";
    assert_eq!(refusal(sampled(Some(&foreign), 1)), sentence);
    // What the parser gives up on ends its own call; what runs beside it does not notice.
    let hard = Source::Lark("start: s \"b\"\ns: s s | \"a\" | \"aa\" | s \"a\" s");
    let hard = grammar(&model, hard);
    let plain = GenerateOptions {
        max_gen_len: Some(150),
        ignore_eos: true,
        ..sampled(None, 9)
    };
    let alone = run(&model, PROMPTS[1], plain.clone()).unwrap();
    let beside = model.stream(prompts(&model, &[PROMPTS[1]]), plain).unwrap();
    let banned = GenerateOptions {
        // Nothing but a's, as long as they last.
        max_gen_len: Some(230),
        temperature: 0.0,
        ..sampled(Some(&hard), 1)
    };
    let outcome = run(&model, "aaaaaaaaaaaaaaaa", banned);
    if let Err(error) = &outcome {
        assert!(matches!(error, Error::Grammar(_)), "{error}");
    }
    let mut tokens = Vec::new();
    loop {
        match beside.next(None).unwrap() {
            Next::Event(Event::Token(event)) => tokens.push(event.token),
            Next::Event(Event::Finish(end)) => assert_eq!(end.reason, FinishReason::Length),
            Next::Done => break,
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(tokens, alone.tokens);
    assert_eq!(model.timings().pages_used, 0);
    assert!(run(&model, PROMPTS[0], sampled(Some(&own), 1)).is_ok());
}

/// Definitions that lead from one into the next, about as many as there may be, of schemas half as
/// many: the parser recurses over them, and its stack must hold that.
#[test]
fn chains_of_definitions_do_not_end_the_process() {
    let model = model();
    let rules = |levels_each: usize, definition: &dyn Fn(usize) -> String, kind: char| {
        let n = (MAX_LARK_LEVELS - 3) / levels_each;
        let chain: String = (0..n).map(definition).collect();
        format!("start: {kind}0\n{chain}{kind}{n}: \"b\"\n")
    };
    let nested = |i: usize| {
        let (open, close) = ("(".repeat(20), " \"x\")".repeat(20));
        format!("r{i}: {open}r{}{close}\n", i + 1)
    };
    let lark = [
        rules(1, &|i| format!("r{i}: r{} \"x\"\n", i + 1), 'r'),
        rules(1, &|i| format!("T{i}: T{} \"x\"\n", i + 1), 'T'),
        rules(2, &|i| format!("r{i}: [r{}]\n", i + 1), 'r'),
        rules(21, &nested, 'r'),
    ];
    let schema = |levels_each: usize, before: &str, after: &str| {
        let n = (MAX_SCHEMA_LEVELS / 2 - 3) / levels_each;
        let definition = |i: usize| format!("\"a{i}\":{before}\"#/$defs/a{}\"{after},", i + 1);
        let chain: String = (0..n).map(definition).collect();
        format!("{{\"$ref\":\"#/$defs/a0\",\"$defs\":{{{chain}\"a{n}\":{{\"type\":\"null\"}}}}}}")
    };
    let schemas = [
        schema(1, "{\"$ref\":", "}"),
        schema(4, "{\"allOf\":[{\"$ref\":", "},{}]}"),
        schema(3, "{\"anyOf\":[{\"$ref\":", "}]}"),
        schema(3, "{\"properties\":{\"a\":{\"$ref\":", "}}}"),
        schema(2, "{\"items\":{\"$ref\":", "}}"),
    ];
    let lark = lark.iter().map(|text| Source::Lark(text));
    for source in lark.chain(schemas.iter().map(|text| Source::JsonSchema(text))) {
        match model.grammar(source) {
            Ok(_) => {}
            Err(Error::Grammar(sentence)) => {
                assert!(!sentence.contains("opening brackets"), "{sentence}");
            }
            Err(other) => panic!("{other:?}"),
        }
    }
    // One more than there may be.
    let many = format!(
        "start: {}\"a\"{}",
        "(".repeat(MAX_LARK_LEVELS),
        ")".repeat(MAX_LARK_LEVELS)
    );
    let sentence = model.grammar(Source::Lark(&many)).unwrap_err().to_string();
    let expected = "it has 4097 opening brackets and definitions, at most 4096 can be";
    assert!(sentence.contains(expected), "{sentence}");
}

/// The ids whose bits a mask has.
fn ids(model: &Llama, is: impl Fn(&str) -> bool) -> Vec<i32> {
    let n = model.tokenizer().vocab_size() as i32;
    let bytes = |id: &i32| model.tokenizer().token_bytes(*id).to_vec();
    let text = |id: &i32| String::from_utf8(bytes(id)).is_ok_and(|text| is(&text));
    (0..n).filter(text).collect()
}

#[test]
fn a_stop_token_ends_a_text_where_it_may_end_and_nowhere_else() {
    let model = model();
    let language = grammar(&model, Source::Regex("(ab){3}[ab]*"));
    let stop_tokens = ids(&model, |text| text == "Q");
    assert!(!stop_tokens.is_empty());
    let eos = model.info().eos_ids.iter().map(|&token| Bias {
        token,
        bias: f32::NEG_INFINITY,
    });
    let likely = stop_tokens.iter().map(|&token| Bias { token, bias: 90.0 });
    let options = GenerateOptions {
        logit_bias: eos.chain(likely).collect(),
        stop_tokens,
        ..sampled(Some(&language), 3)
    };
    let ended = run(&model, PROMPTS[0], options.clone()).unwrap();
    // As soon as it may, which may be behind a token of several letters.
    assert!(
        ended.text.starts_with("ababab") && ended.text.len() < 12,
        "{ended:?}"
    );
    assert_eq!(ended.finish, FinishReason::Stop);
    assert!(!ended.tokens.iter().any(|t| options.stop_tokens.contains(t)));
    // One that the language has: it ends no text that is not of it.
    let inside = GenerateOptions {
        stop_tokens: ids(&model, |text| text == "a"),
        logit_bias: Vec::new(),
        ..options
    };
    for seed in 1..6 {
        let seeded = GenerateOptions {
            seed,
            ..inside.clone()
        };
        match run(&model, PROMPTS[0], seeded) {
            Ok(ended) => {
                assert!(ended.text.starts_with("ababab"), "{ended:?}");
                assert!(ended.tokens.iter().all(|t| !inside.stop_tokens.contains(t)));
            }
            // No other token writes what must follow.
            Err(error) => assert!(matches!(error, Error::NoToken { .. }), "{error}"),
        }
    }
}

#[test]
fn what_a_caller_writes_leaves_the_language_as_it_is() {
    let model = model();
    let language = grammar(&model, Source::Regex("[ab]{2,9}(yes|no)"));
    for seed in 1..4 {
        let options = sampled(Some(&language), seed);
        let whole = run(&model, PROMPTS[1], options.clone()).unwrap();
        for write in [false, true] {
            let mut rows = 0;
            let mut on_logits = |question: &mut Question| {
                rows += 1;
                if write {
                    let forbidden = question.logits_mut().iter_mut();
                    for logit in forbidden.filter(|logit| **logit == f32::NEG_INFINITY) {
                        *logit = 1e9;
                    }
                }
                true
            };
            let deciders = Deciders {
                on_logits: Some(&mut on_logits),
                ..Deciders::default()
            };
            let prompts = prompts(&model, &[PROMPTS[1]]);
            let done = model.generate_deciding(prompts, options.clone(), deciders, &mut |_| true);
            let got = &done.unwrap().sequences[0];
            assert_eq!((&got.tokens, &got.text), (&whole.tokens, &whole.text));
            assert!(rows >= got.tokens.len());
        }
    }
}
