//! What the forms of checkpoints answer beside configuration and weights.

use crate::checkpoints::{Opened, TempDir, reference, sentence};
use llamabi::Dtype;
use llamabi::backend::MatUse;
use llamabi::checkpoint::files::Finder;
use llamabi::checkpoint::stored::Wanted;
use llamabi::checkpoint::{ChatTemplate, TokenizerSource, open};
use llamabi::llama::quantise;
use llamabi::model::matrices::Part;
use llamabi::quant::Quant;
use serde_json::json;

fn template(default: &str, tool_use: Option<&str>) -> Option<ChatTemplate> {
    Some(ChatTemplate {
        default: default.into(),
        tool_use: tool_use.map(str::to_owned),
    })
}

#[test]
fn the_chat_template_of_a_directory() {
    let dir = TempDir::new();
    let config = std::fs::read(reference("gqa-bf16/hf/config.json")).unwrap();
    dir.file("config.json", config);
    let read = || open(dir.path()).unwrap().chat_template();
    assert_eq!(read().unwrap(), None);

    dir.file(
        "chat_template.json",
        json!({"chat_template": "c"}).to_string(),
    );
    assert_eq!(read().unwrap(), template("c", None));
    let named = |name: &str, text: &str| json!({"name": name, "template": text});
    let list = json!({"chat_template": [
        named("rag", "r"), named("tool_use", "t"), named("default", "d"),
    ]});
    dir.file("tokenizer_config.json", list.to_string());
    assert_eq!(read().unwrap(), template("d", Some("t")));
    let object = json!({"chat_template": {"default": "e", "tool_use": "u", "rag": "r"}});
    dir.file("tokenizer_config.json", object.to_string());
    assert_eq!(read().unwrap(), template("e", Some("u")));
    for (value, expected) in [
        (
            json!([named("rag", "r")]),
            "a template of the name `default`",
        ),
        (
            json!([{"name": "default"}]),
            "objects with a `name` and a `template`",
        ),
        (json!({"default": 7}), "a string, or a list"),
        (json!(7), "a string, or a list"),
    ] {
        let file = json!({"chat_template": value}).to_string();
        dir.file("tokenizer_config.json", file);
        let error = sentence(read(), dir.path());
        assert!(error.contains(expected), "{error}");
    }
    dir.file("chat_template.jinja", "j\n");
    assert_eq!(read().unwrap(), template("j\n", None));
    std::fs::create_dir(dir.path().join("additional_chat_templates")).unwrap();
    dir.file("additional_chat_templates/tool_use.jinja", "t");
    assert_eq!(read().unwrap(), template("j\n", Some("t")));
    dir.file("chat_template.jinja", [0xff]);
    let error = sentence(read(), dir.path());
    assert_eq!(error, "chat_template.jinja: not UTF-8");

    let meta = open(&reference("gqa-bf16/meta")).unwrap();
    assert_eq!(meta.chat_template().unwrap(), None);
    let dir = reference("gqa-bf16/meta");
    let source = meta.tokenizer();
    assert!(matches!(source, TokenizerSource::Directory(of) if of == dir));
}

/// Codes and scales that are read by rows are those of the whole part, and mean the same numbers.
#[test]
fn coded_parts_are_read_by_rows() {
    let dir = TempDir::new();
    for quant in Quant::OURS {
        let to = dir.path().join(quant.dtype().name());
        quantise::write(&reference("mha-f32/hf"), &to, quant).unwrap();
        let opened = Opened::new(&to, 512).unwrap();
        let shape = &opened.config.shape;
        let (rows, cols) = (shape.q_dim(), shape.dim);
        let part = opened.checkpoint.part(&opened.config, Part::Q, Some(1));
        let wanted = Wanted {
            part: Part::Q,
            usage: MatUse::Product,
            name: &part.name,
            within: None,
            rows,
            cols,
        };
        let mut finder = Finder::new(&opened.files);
        let coded = opened.checkpoint.coded(&mut finder, &wanted).unwrap();
        let coded = coded.expect("codes");
        assert_eq!((coded.natives(), coded.rows()), (&[quant][..], rows));
        let reader = coded.reader().unwrap();
        let (width, n_scales) = (quant.code_bytes(cols), quant.scales(cols));
        let (mut codes, mut scales) = (vec![0; rows * width], vec![0; rows * n_scales]);
        reader.native(quant, 0, &mut codes, &mut scales).unwrap();
        assert!(scales.iter().all(|&scale| scale != 0));
        for (row, n) in [(0, rows), (3, 4), (rows - 1, 1)] {
            let mut got = vec![f32::NAN; n * cols];
            reader.floats(row, &mut got).unwrap();
            for (i, got) in got.chunks(cols).enumerate() {
                let mut want = vec![0.0; cols];
                let row = row + i;
                let codes = &codes[row * width..][..width];
                quant.decode(codes, &scales[row * n_scales..][..n_scales], &mut want);
                assert_eq!(got, want, "{quant:?} row {row}");
            }
        }
        let refused = opened.plan(Some(Dtype::F32)).unwrap_err();
        assert!(refused.to_string().contains("is quantised as"), "{refused}");
    }
}
