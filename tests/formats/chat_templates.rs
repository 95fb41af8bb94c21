//! Chat templates of models: transformers' reference cases, messages as JSON, formats of Meta's.

use crate::aloud::skipped;
use crate::tokenizers::WIDE;
use llamabi::chat::jinja::{Meter, Moment, Template, Value, read_json};
use llamabi::chat::{Chat, ChatRequest, Encoding, Format, Sources, Turn};
use llamabi::tokenizer::{self, Bound, Tokenizer};
use llamabi::{Error, Result};
use std::path::{Path, PathBuf};
use std::sync::{Arc, LazyLock};

static TOKENIZER: LazyLock<Arc<dyn Tokenizer>> =
    LazyLock::new(|| tokenizer::open(Path::new(WIDE)).unwrap());

/// 2026-01-15 12:34:56 in UTC.
const NOW: i64 = 1_768_480_496;

fn chat(source: &str, tokens: &[(&str, &str)]) -> Chat {
    let sources = Sources {
        default: source.into(),
        tool_use: None,
    };
    let tokens = tokens
        .iter()
        .map(|(name, text)| ((*name).into(), Some((*text).into())));
    Chat::new(Some(Ok(sources)), tokens.collect(), &**TOKENIZER, Some(NOW))
}

fn text(chat: &Chat, request: &ChatRequest) -> Result<String> {
    chat.render(request, None).map(|rendered| rendered.text)
}

fn field<'v>(of: &'v Value, name: &str) -> &'v Value {
    match of {
        Value::Dict(dict) => dict.get_text(name).unwrap_or(&Value::None),
        _ => panic!("no object"),
    }
}

fn string(of: &Value) -> Option<&str> {
    match of {
        Value::Text(text) => Some(text.as_str()),
        _ => None,
    }
}

/// A value as JSON text, its keys in their order.
fn json(of: &Value) -> String {
    let template = Template::read("{{ x | tojson }}").unwrap();
    let moment = Moment {
        year: 2026,
        month: 1,
        day: 1,
        hour: 0,
        minute: 0,
        second: 0,
        weekday: 4,
        yearday: 0,
    };
    let variables = vec![("x", of.clone())];
    template
        .render(Meter::new(1 << 20, None), moment, variables)
        .unwrap()
        .text
}

/// Compares every case of `cases.json` in `folder` with its templates; how many there are.
fn compare(folder: &Path) -> usize {
    let file = std::fs::read_to_string(folder.join("cases.json")).unwrap();
    let file = read_json(&mut Meter::new(1 << 26, None), &file).unwrap();
    let Value::List(cases) = field(&file, "cases") else {
        panic!("no cases")
    };
    for case in &cases.items {
        let name = string(field(case, "template")).unwrap();
        let what = format!("{name} {}", string(field(case, "dialog")).unwrap());
        let path = folder.join(format!("templates/{name}.jinja"));
        let source = std::fs::read_to_string(path).unwrap();
        let Value::Dict(tokens) = field(case, "tokens") else {
            panic!("no tokens")
        };
        let own = |value: &Value| string(value).unwrap().to_owned();
        let mut tokens: Vec<(String, Option<String>)> = tokens
            .entries()
            .iter()
            .map(|(name, text)| (own(name), Some(own(text))))
            .collect();
        // Those of the tokenizer at hand are not the model's.
        tokens.extend(["bos_token", "unk_token"].map(|name| (name.to_owned(), None)));
        let (messages, variables) = (
            json(field(case, "messages")),
            json(field(case, "variables")),
        );
        let tools = match field(case, "tools") {
            Value::None => None,
            tools => Some(json(tools)),
        };
        let request = ChatRequest {
            messages: &messages,
            tools: tools.as_deref(),
            variables: Some(&variables),
            no_generation_prompt: !field(case, "add_generation_prompt").truth(),
            continue_final: field(case, "continue_final_message").truth(),
            ..ChatRequest::default()
        };
        let sources = Sources {
            default: source,
            tool_use: None,
        };
        let chat = Chat::new(Some(Ok(sources)), tokens, &**TOKENIZER, Some(NOW));
        let ours = text(&chat, &request);
        match (string(field(case, "text")), ours) {
            // Contents that are lists of texts are joined here, and given as they are there.
            (_, Ok(_)) if what.ends_with(" parts") => {}
            // Nulls, which are left out now, were written when these were recorded.
            (Some(text), Ok(ours)) if what.ends_with(" tool-call-none") => {
                assert_eq!(ours, text.replace("None", ""), "{what}");
            }
            (Some(text), Ok(ours)) => assert_eq!(ours, text, "{what}"),
            (None, Err(Error::InvalidArgument { .. })) => {}
            (expected, ours) => panic!("{what}: {ours:?} instead of {expected:?}"),
        }
    }
    cases.items.len()
}

#[test]
fn templates_render_as_in_transformers() {
    let ours = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/chat");
    assert!(compare(&ours) > 80);
    // Templates of models are others' property: a folder of cases.json and templates/ may be named.
    match std::env::var_os("LLAMABI_CHAT_CASES").map(PathBuf::from) {
        Some(folder) => eprintln!("{} cases of {}", compare(&folder), folder.display()),
        None => skipped("templates of real models: LLAMABI_CHAT_CASES names no folder"),
    }
}

/// Texts of special tokens in messages stay texts (`safe`), unless they are to be parsed, as
/// transformers does (`parsed`). `variables` are those of every case.
fn compare_ids(cases: &Path, template: impl Fn(&Value) -> PathBuf, file: &Path, variables: &str) {
    let tokenizer = tokenizer::open(file).unwrap();
    let list = std::fs::read_to_string(cases).unwrap();
    let list = read_json(&mut Meter::new(1 << 26, None), &list).unwrap();
    let Value::List(list) = &list else {
        panic!("no list of cases")
    };
    assert!(list.items.len() >= 16);
    for (n, case) in list.items.iter().enumerate() {
        let default = std::fs::read_to_string(template(case)).unwrap();
        let sources = Sources {
            default,
            tool_use: None,
        };
        let named = |name: &str, text: &str| (name.to_owned(), Some(text.to_owned()));
        let bos = named("bos_token", "<|begin_of_text|>");
        let eos = named("eos_token", "<|eot_id|>");
        let chat = Chat::new(Some(Ok(sources)), vec![bos, eos], &*tokenizer, Some(NOW));
        let messages = json(field(case, "messages"));
        for (parse_special, key) in [(false, "safe"), (true, "parsed")] {
            let request = ChatRequest {
                messages: &messages,
                variables: Some(variables),
                parse_special,
                ..ChatRequest::default()
            };
            let ids = chat.encode(&*tokenizer, &request, Bound::default());
            let Encoding::Tokens(ids) = ids.unwrap() else {
                panic!("case {n}: no tokens")
            };
            let want: Vec<i32> = serde_json::from_str(&json(field(case, key))).unwrap();
            assert_eq!(ids, want, "case {n}, {key}: {messages}");
        }
    }
}

#[test]
fn special_tokens_in_messages_are_words_unless_asked() {
    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data");
    let headers = |_: &Value| data.join("chat/templates/headers.jinja");
    let tokenizer = data.join("tokenizers/llama3.json");
    let variables = r#"{"date_string": "1 Jan 2026"}"#;
    compare_ids(
        &data.join("chat/injection.json"),
        headers,
        &tokenizer,
        variables,
    );
    // The cases of models' own templates, beside the tokenizer that they were made with.
    let Some(folder) = std::env::var_os("LLAMABI_CHAT_CASES").map(PathBuf::from) else {
        return eprintln!("skipped: LLAMABI_CHAT_CASES names no folder of models' templates");
    };
    let of_model = |case: &Value| {
        let name = string(field(case, "template")).unwrap();
        folder.join(format!("templates/{name}.jinja"))
    };
    let tokenizer = folder.join("../tokenizers/llama3.json");
    compare_ids(&folder.join("injection.json"), of_model, &tokenizer, "{}");
}

fn request(messages: &str) -> ChatRequest<'_> {
    ChatRequest {
        messages,
        ..ChatRequest::default()
    }
}

#[test]
fn messages_are_in_openais_shape() {
    let shown = "{% for m in messages %}{{ m | tojson }}{% endfor %}";
    let chat = chat(shown, &[]);
    let good = [
        (
            r#"[{"role":"user","content":[{"type":"text","text":"a"},{"type":"text","text":"b"}]}]"#,
            r#"{"role": "user", "content": "ab"}"#,
        ),
        (
            r#"[{"role":"assistant","content":null,"tool_calls":[{"id":"1","function":{"name":"f","arguments":"{\"b\": 1, \"a\": []}"}}]}]"#,
            r#"{"role": "assistant", "tool_calls": [{"id": "1", "function": {"name": "f", "arguments": {"b": 1, "a": []}}}]}"#,
        ),
        (
            r#"[{"role":"tool","tool_call_id":"1","content":"x","own":{"z":1,"a":2}}]"#,
            r#"{"role": "tool", "tool_call_id": "1", "content": "x", "own": {"z": 1, "a": 2}}"#,
        ),
        (
            r#"[{"role":"assistant","content":"x","reasoning":"why"}]"#,
            r#"{"role": "assistant", "content": "x", "reasoning": "why", "reasoning_content": "why", "thinking": "why"}"#,
        ),
        (
            r#"[{"role":"assistant","thinking":null,"reasoning_content":"why","content":"x"}]"#,
            r#"{"role": "assistant", "thinking": "why", "reasoning_content": "why", "content": "x", "reasoning": "why"}"#,
        ),
        (
            r#"[{"role":"assistant","reasoning":null,"content":"x"}]"#,
            r#"{"role": "assistant", "content": "x"}"#,
        ),
    ];
    for (messages, expected) in good {
        assert_eq!(text(&chat, &request(messages)).unwrap(), expected);
    }
    let bad = [
        (
            "",
            "messages is EOF while parsing a value at line 1 column 0",
        ),
        (
            "[{\"role\": \"user\",\n]",
            "messages is key must be a string at line 2 column 1",
        ),
        ("{}", "messages is a dict, must be an array"),
        ("[]", "messages is empty, must be at least one message"),
        ("[1]", "messages[0] is an int, must be an object"),
        ("[{}]", "messages[0].role is missing, must be a string"),
        (
            r#"[{"role":"user","content":1}]"#,
            "messages[0].content is an int",
        ),
        (
            r#"[{"role":"user","content":[{"type":"image_url","image_url":"x"}]}]"#,
            "messages[0].content[0] is of type \"image_url\": messages are texts here",
        ),
        (
            r#"[{"role":"a","tool_calls":[{"function":{"arguments":"{x"}}]}]"#,
            "messages[0].tool_calls[0].function.arguments is key must be a string at line 1 column 2",
        ),
    ];
    for (messages, sentence) in bad {
        let error = text(&chat, &request(messages)).unwrap_err().to_string();
        assert!(error.starts_with(sentence), "{error}");
    }
}

#[test]
fn contents_are_lists_for_templates_that_go_through_them() {
    let part = |text: &str| format!(r#"{{"type":"text","text":"{text}"}}"#);
    let one = format!("[{}]", part("a "));
    let two = format!("[{},{}]", part("a "), part("b "));
    let dialog = |content: &str| format!(r#"[{{"role":"user","content":{content}}}]"#);
    for source in [
        "{% for c in messages[0].content %}<{{ c.text }}>{% endfor %}",
        "{% for c in messages[0]['content'] | list %}<{{ c.text }}>{% endfor %}",
        "{% set content = messages[0].content %}{% for c in content[0:] if c %}<{{ c.text }}>{% endfor %}",
    ] {
        let chat = chat(source, &[]);
        let rendered = |content: &str| text(&chat, &request(&dialog(content))).unwrap();
        assert_eq!(rendered(&two), "<a ><b >", "{source}");
        // A single one is the same as its text to most.
        assert_eq!(rendered(&one), "<><>", "{source}");
    }
    // Others see the texts joined, and so does who goes through something else.
    for source in [
        "{{ messages[0].content }}",
        "{% for m in messages %}{{ m.content }}{% endfor %}{% for x in [messages[0].content] %}{% endfor %}",
        "{{ messages[0].content }}{% for c in messages[0].contents %}{% endfor %}",
    ] {
        let rendered = text(&chat(source, &[]), &request(&dialog(&two)));
        assert_eq!(rendered.unwrap(), "a b ", "{source}");
    }
    let source = "{% for m in messages %}[{% if m.content is string %}{{ m.content }}{% else %}\
                  {% for c in m.content %}<{{ c.text | trim }}>{% endfor %}{% endif %}]{% endfor %}";
    let messages = dialog(&two);
    let request = ChatRequest {
        continue_final: true,
        ..request(&messages)
    };
    let rendered = chat(source, &[]).render(&request, None).unwrap();
    assert_eq!(rendered.text, "[<a><b");
}

/// As transformers since 5.24, unless the template needs them.
#[test]
fn nulls_of_messages_are_left_out() {
    let messages = r#"[{"role":"assistant","content":null,"name":null,"own":{"z":null}}]"#;
    for (source, expected) in [
        (
            "{{ messages[0] | tojson }}",
            r#"{"role": "assistant", "own": {"z": null}}"#,
        ),
        (
            "<{{ messages[0].content }}>{{ messages[0].content is none }}",
            "<>False",
        ),
        (
            "{{ (messages[0].content is none) ~ messages[0].content | tojson }}",
            "Truenull",
        ),
    ] {
        let rendered = text(&chat(source, &[]), &request(messages));
        assert_eq!(rendered.unwrap(), expected, "{source}");
    }
    // What is said of it is what is wrong without them.
    let source = "{{ messages[0].content + 1 }}";
    let error = text(&chat(source, &[]), &request(messages)).unwrap_err();
    let error = error.to_string();
    assert!(
        error.contains("a value of type dict has no `content`"),
        "{error}"
    );
}

#[test]
fn variables_are_the_callers_and_the_tokenizers() {
    let source = "{{ bos_token }}{{ eos_token }}{{ x }}{{ tools is none }}{{ strftime_now('%Y') }}";
    let unnamed = text(
        &chat(source, &[]),
        &request(r#"[{"role":"user","content":"a"}]"#),
    );
    assert_eq!(unnamed.unwrap(), "<s></s>True2026");
    // A SentencePiece model names its own where others are named; other tokenizers do not, and
    // nor does it where there is said to be none.
    let chat_of = |tokenizer: &dyn Tokenizer, tokens: &[(&str, Option<&str>)]| {
        let sources = Sources {
            default: "{{ bos_token }}{{ eos_token }}{{ unk_token }}".into(),
            tool_use: None,
        };
        let named =
            |(name, text): &(&str, Option<&str>)| ((*name).to_owned(), text.map(str::to_owned));
        let tokens = tokens.iter().map(named).collect();
        let chat = Chat::new(Some(Ok(sources)), tokens, tokenizer, Some(NOW));
        text(&chat, &request(r#"[{"role":"user","content":"a"}]"#)).unwrap()
    };
    let other = tokenizer::open(Path::new("tests/data/tokenizers/llama3.json")).unwrap();
    let end = ("eos_token", Some("<|end|>"));
    assert_eq!(chat_of(&**TOKENIZER, &[end]), "<s><|end|><unk>");
    assert_eq!(
        chat_of(&**TOKENIZER, &[end, ("bos_token", None)]),
        "<|end|><unk>"
    );
    assert_eq!(chat_of(&*other, &[end]), "<|end|>");
    assert_eq!(chat_of(&*other, &[]), "<|begin_of_text|>");
    let chat = chat(source, &[("eos_token", "<|end|>")]);
    let messages = r#"[{"role":"user","content":"a"}]"#;
    let with = |variables| ChatRequest {
        variables: Some(variables),
        tools: Some("[]"),
        ..request(messages)
    };
    assert_eq!(
        text(&chat, &with(r#"{"x": [1, "y"]}"#)).unwrap(),
        "<s><|end|>[1, 'y']True2026"
    );
    for (variables, sentence) in [
        (r#"{"messages": 1}"#, "variables.messages is there"),
        (r#"{"tools": 1}"#, "variables.tools is there"),
        ("[]", "variables is another value, must be an object"),
    ] {
        let error = text(&chat, &with(variables)).unwrap_err().to_string();
        assert!(error.starts_with(sentence), "{error}");
    }
}

#[test]
fn errors_name_the_template_or_the_dialog() {
    let messages = r#"[{"role":"critic","content":"x"}]"#;
    let error = |source: &str| text(&chat(source, &[]), &request(messages)).unwrap_err();
    let raised = error("{{ raise_exception('no ' ~ messages[0].role) }}");
    assert!(matches!(raised, Error::InvalidArgument { .. }));
    assert!(
        raised.to_string().contains("refused by it: no critic"),
        "{raised}"
    );
    assert!(matches!(
        error("\n{{ 1 + 'a' }}"),
        Error::InvalidArgument { .. }
    ));
    let broken = error("{% if %}");
    assert!(matches!(broken, Error::Format { .. }), "{broken}");
    assert!(broken.to_string().contains("line 1"), "{broken}");
    assert!(matches!(error("{% include 'x' %}"), Error::Unsupported(_)));
    assert!(matches!(
        error("{{ 'a'.center(10 ** 12) }}"),
        Error::Format { .. }
    ));
    assert!(chat("{% if %}", &[]).broken().is_some() && chat("a", &[]).broken().is_none());
}

#[test]
fn the_template_of_a_call_comes_first_and_tools_may_have_their_own() {
    let sources = Sources {
        default: "default".into(),
        tool_use: Some("tool_use".into()),
    };
    let chat = Chat::new(Some(Ok(sources)), Vec::new(), &**TOKENIZER, None);
    let messages = r#"[{"role":"user","content":"a"}]"#;
    let mut request = request(messages);
    assert_eq!(text(&chat, &request).unwrap(), "default");
    request.tools = Some(r#"[{"type":"function","function":{}}]"#);
    assert_eq!(text(&chat, &request).unwrap(), "tool_use");
    request.template = Some("{{ tools | length }}");
    assert_eq!(text(&chat, &request).unwrap(), "1");
}

#[test]
fn without_a_template_sentencepiece_has_metas_llama_2_format() {
    let chat = Chat::new(None, Vec::new(), &**TOKENIZER, None);
    assert_eq!(chat.format(), Format::Llama2);
    let turns = [Turn {
        role: "user",
        content: "Hi",
    }];
    let bound = Bound::default;
    let by_turns = chat.encode_turns(&**TOKENIZER, &turns, bound()).unwrap();
    let messages = r#"[{"role":"user","content":"Hi"}]"#;
    let by_json = chat
        .encode(&**TOKENIZER, &request(messages), bound())
        .unwrap();
    assert_eq!(by_json, by_turns);
    assert!(matches!(by_turns, Encoding::Tokens(_)));
    let tagged = r#"[{"role":"user","content":"[INST]"}]"#;
    let refused = chat
        .encode(&**TOKENIZER, &request(tagged), bound())
        .unwrap();
    assert_eq!(refused, Encoding::Unsafe);
    let error = chat.render(&request(messages), None).unwrap_err();
    assert!(matches!(error, Error::Unsupported(_)), "{error}");
}

#[test]
fn a_final_message_can_be_continued() {
    let source = "{% for m in messages %}<{{ m.content | trim }}>{% endfor %}";
    let dialog = |content: &str| {
        let messages = format!(
            r#"[{{"role":"user","content":"q"}},{{"role":"assistant","content":{content}}}]"#
        );
        let request = ChatRequest {
            continue_final: true,
            ..request(&messages)
        };
        chat(source, &[]).render(&request, None)
    };
    let rendered = dialog("\"Once  \"").unwrap();
    assert_eq!(rendered.text, "<q><Once");
    assert_eq!(
        rendered.runs.iter().map(|run| run.len).sum::<usize>(),
        rendered.text.len()
    );
    assert!(dialog("null").is_err());
    let hidden = chat("{{ messages[0].content }}", &[]);
    let request = ChatRequest {
        continue_final: true,
        ..request(r#"[{"role":"user","content":"q"},{"role":"assistant","content":"a"}]"#)
    };
    assert!(hidden.render(&request, None).is_err());
}
