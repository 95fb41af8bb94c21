//! Numbers that are not finite: refused where they are in a checkpoint, and the end of one sequence
//! where the model makes them.

use crate::checkpoints::TempDir;
use crate::common::*;
use llamabi::capi::*;
use llamabi::format::{pth, safetensors as st};
use llamabi::llama::quantise;
use llamabi::quant::Quant;
use std::path::{Path, PathBuf};

/// A copy of a checkpoint in which some numbers are others.
struct Patched(TempDir);

impl Patched {
    fn new(source: &Path) -> Patched {
        let dir = TempDir::new();
        for entry in std::fs::read_dir(source).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_str().unwrap();
            dir.file(name, std::fs::read(&path).unwrap());
        }
        Patched(dir)
    }

    fn of(name: &str) -> Patched {
        Patched::new(&reference(name))
    }

    /// Write `number`'s bytes over those of these elements.
    fn set(&self, file: &str, tensor: &str, at: impl IntoIterator<Item = usize>, number: &[u8]) {
        let path = self.path(file);
        let open = match file.ends_with(".pth") {
            true => pth::open,
            false => st::open,
        };
        let offset = open(&path, None).unwrap().tensors[tensor].offset as usize;
        let mut bytes = std::fs::read(&path).unwrap();
        for at in at {
            bytes[offset + at * number.len()..][..number.len()].copy_from_slice(number);
        }
        std::fs::write(path, bytes).unwrap();
    }

    fn path(&self, file: &str) -> PathBuf {
        self.0.path().join(file)
    }

    fn open(&self, dtype: i32) -> Result<Model, Failure> {
        let mut options = build_options();
        options.weights_dtype = dtype;
        options.max_seq_len = 64;
        options.max_batch_size = 2;
        Model::open(self.0.path(), None, &options)
    }

    #[track_caller]
    fn refused(&self, dtype: i32, file: &str, sentence: &str) {
        let Err((status, got)) = self.open(dtype) else {
            panic!("built, expected: {sentence}");
        };
        assert_eq!(status, LLAMA_E_FORMAT, "{got}");
        let want = format!("{}: {sentence}", self.path(file).display());
        assert_eq!(got, want);
    }
}

const PTH: &str = "consolidated.00.pth";
const ST: &str = "model.safetensors";

#[test]
fn a_weight_that_is_none_is_refused_with_its_place() {
    for dtype in [
        LLAMA_DTYPE_AUTO,
        LLAMA_DTYPE_BF16,
        LLAMA_DTYPE_INT8,
        LLAMA_DTYPE_NF4,
    ] {
        for (number, shown) in [(f32::NAN, "NaN"), (-f32::INFINITY, "-inf")] {
            let p = Patched::of("mha-f32/meta");
            p.set(
                PTH,
                "layers.1.attention.wv.weight",
                [64 * 5 + 7],
                &number.to_le_bytes(),
            );
            p.refused(
                dtype,
                PTH,
                &format!(
                    "tensor `layers.1.attention.wv.weight`: expected finite numbers, found {shown} at index \
                     327 (row 5, column 7)"
                ),
            );
        }
    }
    // A vector; and the first of several.
    let p = Patched::of("mha-f32/hf");
    p.set(
        ST,
        "model.norm.weight",
        [63, 9],
        &f32::INFINITY.to_le_bytes(),
    );
    p.refused(
        LLAMA_DTYPE_AUTO,
        ST,
        "tensor `model.norm.weight`: expected finite numbers, found inf at index 9",
    );
    // The embedding, which is only looked up; the last number of the file's second shard.
    let p = Patched::of("gqa-bf16/hf");
    p.set(
        ST,
        "model.embed_tokens.weight",
        [96 * 511 + 95],
        &[0xc1, 0xff],
    );
    p.refused(
        LLAMA_DTYPE_AUTO,
        ST,
        "tensor `model.embed_tokens.weight`: expected finite numbers, found NaN at index 49151 (row 511, \
         column 95)",
    );
    let p = Patched::of("gqa-f16-mp2/meta");
    p.set("consolidated.01.pth", "output.weight", [0], &[0x00, 0x7c]);
    p.refused(
        LLAMA_DTYPE_AUTO,
        "consolidated.01.pth",
        "tensor `output.weight`: expected finite numbers, found inf at index 0 (row 0, column 0)",
    );
}

#[test]
fn a_weight_that_its_format_cannot_hold_is_refused() {
    let with = |number: f32| {
        let p = Patched::of("mha-f32/hf");
        p.set(ST, "lm_head.weight", [1], &number.to_le_bytes());
        p
    };
    let p = with(-65_520.0);
    let tensor = "tensor `lm_head.weight`: expected";
    p.refused(
        LLAMA_DTYPE_F16,
        ST,
        &format!(
            "{tensor} numbers that are finite as f16, found -65520 at index 1 (row 0, column 1)"
        ),
    );
    for dtype in [
        LLAMA_DTYPE_F32,
        LLAMA_DTYPE_BF16,
        LLAMA_DTYPE_INT8,
        LLAMA_DTYPE_INT4,
    ] {
        assert!(p.open(dtype).is_ok(), "{dtype}");
    }
    assert!(with(65_519.0).open(LLAMA_DTYPE_F16).is_ok());
    let p = with(f32::MAX);
    p.refused(
        LLAMA_DTYPE_BF16,
        ST,
        &format!(
            "{tensor} numbers that are finite as bf16, found {} at index 1 (row 0, column 1)",
            f32::MAX
        ),
    );
    assert!(p.open(LLAMA_DTYPE_F32).is_ok());

    let p = Patched::of("mha-f32/hf");
    let up = "model.layers.1.mlp.up_proj.weight";
    p.set(ST, up, [64 * 3 + 2], &1e6f32.to_le_bytes());
    p.refused(
        LLAMA_DTYPE_NF4,
        ST,
        &format!("tensor `{up}`: expected scales of blocks below 65520, found 1000000 for block 3"),
    );
}

/// Scales that are kept as f16 are named with the number that the file has, or that its codes mean.
#[test]
fn scales_that_are_too_large_are_shown() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/quantised");
    for (name, changed, named, number, shown) in [
        ("bnb-int8", "SCB", "SCB", 127e6f32, "1000000 for block "),
        ("bnb-nf4", "weight.nested_absmax", "weight.absmax", 1e9, ""),
    ] {
        let p = Patched::new(&root.join(name));
        let tokenizer = std::fs::read(root.join("tokenizer.model")).unwrap();
        p.0.file("tokenizer.model", tokenizer);
        let tensor = |end: &str| format!("model.layers.0.self_attn.q_proj.{end}");
        p.set(ST, &tensor(changed), [0], &number.to_le_bytes());
        let Err((status, got)) = p.open(LLAMA_DTYPE_AUTO) else {
            panic!("{name} is built");
        };
        assert_eq!(status, LLAMA_E_FORMAT);
        let start = format!(
            "{}: tensor `{}`: expected scales of blocks below 65520, found {shown}",
            p.path(ST).display(),
            tensor(named)
        );
        assert!(got.starts_with(&start) && !got.contains("inf"), "{got}");
    }
}

#[test]
fn scales_of_quantised_checkpoints_are_numbers() {
    let w = "layers.0.feed_forward.w1.weight";
    let cases: [(Quant, &str, usize, &[u8], String); 4] = [
        (
            Quant::Int8,
            ".scale",
            3,
            &[0x01, 0x7c],
            format!(
                "tensor `{w}.scale`: expected finite numbers, found NaN at index 3 (row 1, column 1)"
            ),
        ),
        (
            Quant::Int4,
            ".scale",
            2,
            &[0x00, 0xfc],
            format!(
                "tensor `{w}.scale`: expected finite numbers, found -inf at index 2 (row 1, column 0)"
            ),
        ),
        (
            Quant::Nf4,
            ".nested_offset",
            0,
            &[0, 0, 0xc0, 0x7f],
            format!("tensor `{w}.nested_offset`: expected finite numbers, found NaN at index 0"),
        ),
        // A number, but not as a scale: the first block of the tensor is not as far as 1e30 from
        // the mean.
        (
            Quant::Nf4,
            ".nested_absmax",
            0,
            &[0xca, 0xf2, 0x49, 0x71],
            format!("tensor `{w}`: expected scales of blocks below 65520, found "),
        ),
    ];
    for (quant, suffix, at, number, sentence) in cases {
        let dir = TempDir::new();
        let to = dir.path().join("quantised");
        quantise::write(&reference("mha-f32/meta"), &to, quant).unwrap();
        let p = Patched::new(&to);
        p.set(ST, &format!("{w}{suffix}"), [at], number);
        let Err((status, got)) = p.open(LLAMA_DTYPE_AUTO) else {
            panic!("built, expected: {sentence}");
        };
        let want = format!("{}: {sentence}", p.path(ST).display());
        assert!(
            status == LLAMA_E_FORMAT && got.starts_with(&want),
            "{got}\n{want}"
        );
    }

    // Nor is a checkpoint written that could not be read again.
    for quant in Quant::OURS {
        let p = Patched::of("mha-f32/meta");
        p.set(
            PTH,
            "layers.2.attention.wo.weight",
            [0],
            &f32::NAN.to_le_bytes(),
        );
        let to = p.0.path().join("to");
        let error = quantise::write(p.0.path(), &to, quant).unwrap_err();
        let part =
            "tensor `layers.2.attention.wo.weight`: expected finite numbers, found NaN at index 0";
        assert!(error.to_string().contains(part), "{error}");
    }
}

/// The token whose sequences overflow.
const BAD: i32 = 77;

/// A model of finite weights. Column 0 of the embedding outweighs all others, with a minus for
/// every token but one; gate and up of the first layer make infinity of it where it is positive,
/// and nothing where it is negative.
fn overflowing() -> Patched {
    let p = Patched::of("mha-f32/meta");
    let embedding = "tok_embeddings.weight";
    p.set(
        PTH,
        embedding,
        (0..512).map(|token| token * 64),
        &(-1000f32).to_le_bytes(),
    );
    p.set(PTH, embedding, [BAD as usize * 64], &1000f32.to_le_bytes());
    for part in ["w1", "w3"] {
        let name = format!("layers.0.feed_forward.{part}.weight");
        p.set(PTH, &name, [0], &1e30f32.to_le_bytes());
    }
    p
}

#[test]
fn what_overflows_ends_its_sequence_alone() {
    let p = overflowing();
    let (model, fresh) = (
        p.open(LLAMA_DTYPE_AUTO).unwrap(),
        p.open(LLAMA_DTYPE_AUTO).unwrap(),
    );
    let mut options = greedy(20);
    options.top_logprobs = 3;
    options.flags |= LLAMA_GEN_IGNORE_EOS;
    let good = |i: i32| -> Vec<i32> {
        (0..40)
            .map(|at| if at == 0 { 1 } else { 100 + (at * i) % 50 })
            .collect()
    };
    let expected = fresh.one(&good(3), &options);
    assert_eq!(
        (expected.finish, expected.tokens.len()),
        (LLAMA_FINISH_LENGTH, 20)
    );
    assert!(expected.logprobs.iter().all(|x| x.is_finite()));

    // Beside it, before it, and after it in the same pages: the good one is what it always is.
    let bad = vec![1, 5, BAD, 6, 7, 8];
    for _ in 0..3 {
        let both = model.generate(&[bad.clone(), good(3)], &options).unwrap();
        assert_eq!(both[0].finish, LLAMA_FINISH_NOT_FINITE);
        assert_eq!((both[0].tokens.len(), &both[0].text[..]), (0, ""));
        assert_eq!(
            both[1],
            Sequence {
                cached_tokens: both[1].cached_tokens,
                ..expected.clone()
            }
        );
    }
    for i in 4..12 {
        let long: Vec<i32> = bad.iter().cycle().copied().take(40 + i as usize).collect();
        let both = model.generate(&[long.clone(), long], &options).unwrap();
        assert!(both.iter().all(|s| s.finish == LLAMA_FINISH_NOT_FINITE));
        assert_eq!(model.one(&good(i), &options), fresh.one(&good(i), &options));
    }

    // Scores of the prompt: those before the bad token are there, and no NaN is.
    let mut echo = options;
    echo.flags |= LLAMA_GEN_ECHO;
    let scored = model.one(&bad, &echo);
    assert_eq!(scored.finish, LLAMA_FINISH_NOT_FINITE);
    assert_eq!(scored.tokens, bad[..3]);
    assert!(scored.logprobs.iter().all(|x| x.is_finite()), "{scored:?}");
    // By way of tokens that are drawn, too.
    let mut sampled = generate_options();
    (
        sampled.temperature,
        sampled.top_k,
        sampled.repetition_penalty,
    ) = (1.0, 5, 1.3);
    assert_eq!(model.one(&bad, &sampled).finish, LLAMA_FINISH_NOT_FINITE);
    let timings = model.timings();
    assert_eq!((timings.running, timings.waiting), (0, 0));
}

/// A prompt that the model cannot judge is an error, and the handle goes on.
#[test]
fn what_overflows_is_not_compressed() {
    use llamabi::llama::{CompressOptions, Segment, SegmentKind};
    let p = overflowing();
    let llama =
        llamabi::Llama::build(p.0.path(), None, &Default::default(), &mut |_| true).unwrap();
    let bad = llama.tokenizer().decode(&[BAD]).unwrap();
    let compress = |text: &str| {
        let kind = SegmentKind::Compress;
        llama.compress(&[Segment { text, kind }], &CompressOptions::default())
    };
    let text = format!("{bad} {bad} a b c d e f");
    assert!(llama.tokenizer().encode(&text).unwrap().contains(&BAD));
    for _ in 0..2 {
        let error = compress(&text).unwrap_err();
        assert!(error.to_string().contains("not finite"), "{error}");
        assert!(llama.health().is_ok());
    }
}
