//! Adapters that requests choose.
#![allow(unsafe_code)]

use super::*;

/// A stream of one sequence, freed when dropped.
struct Pulled(*mut llama_stream_t);

impl Pulled {
    fn open(model: &Model, prompt: &[i32], options: &llama_generate_options) -> Pulled {
        let (mut stream, len) = (null_mut(), prompt.len());
        // SAFETY: pointers and lengths are those of values that outlive the call.
        let status = unsafe {
            let prompt = prompt.as_ptr();
            llama_stream_open(
                model.raw(),
                prompt,
                &len,
                1,
                options,
                &mut stream,
                null_mut(),
            )
        };
        assert_eq!(status, LLAMA_OK);
        Pulled(stream)
    }

    /// The next token; `None` at the end.
    fn next(&self) -> Option<i32> {
        // SAFETY: numbers and pointers of C: zeros are a value of each.
        let mut event: llama_event = unsafe { std::mem::zeroed() };
        event.struct_size = size_of::<llama_event>() as u32;
        // SAFETY: the stream is open, and the event outlives the call.
        let status = unsafe { llama_stream_next(self.0, &mut event, -1, null_mut()) };
        assert!([LLAMA_OK, LLAMA_DONE].contains(&status));
        (status == LLAMA_OK && event.kind == LLAMA_EVENT_TOKEN).then_some(event.token)
    }
}

impl Drop for Pulled {
    fn drop(&mut self) {
        // SAFETY: of llama_stream_open, freed once.
        unsafe { llama_stream_free(self.0) };
    }
}

/// The options of a call with an adapter.
fn with(id: u32, options: llama_generate_options) -> llama_generate_options {
    llama_generate_options {
        adapter: id,
        ..options
    }
}

/// Sum of the differences from the reference's log probabilities of a prompt.
fn off(model: &Model, id: u32, case: &Value) -> f32 {
    let mut options = with(id, ignoring_eos(1));
    options.flags |= LLAMA_GEN_ECHO;
    let got = model.one(&tokens(&case["prompt"]), &options).logprobs;
    let of_prompt = floats(&case["prompt_logprobs"]);
    got.iter().zip(&of_prompt).map(|(a, b)| (a - b).abs()).sum()
}

/// What is added in the rows of a request is what merging adds to the weights: exactly on float32
/// weights, and within their own errors on others.
#[test]
fn an_adapter_of_a_request_computes_what_a_merged_one_does() {
    let all = json(&data("cases.json"));
    for (dtype, bound) in [
        (LLAMA_DTYPE_F32, 0.0),
        (LLAMA_DTYPE_BF16, 0.1),
        (LLAMA_DTYPE_F16, 0.1),
        (LLAMA_DTYPE_INT8, 0.2),
        (LLAMA_DTYPE_INT4, 0.6),
    ] {
        let base = data("base");
        let model = merged(&base, &[], &[], dtype).unwrap();
        for (name, cases) in all.as_object().unwrap() {
            let names = cases["adapters"].as_array().unwrap();
            let [adapter] = &names[..] else { continue };
            if adapter == "with-head" {
                continue;
            }
            let scale = floats(&cases["scales"])[0];
            let id = model.add_adapter(&data(adapter.as_str().unwrap()), scale);
            let id = id.unwrap();
            let (mut error, mut without) = (0.0, 0.0);
            for (i, case) in cases["cases"].as_array().unwrap().iter().enumerate() {
                let what = format!("{name}, case {i}");
                error += off(&model, id, case);
                without += off(&model, 0, case);
                if dtype != LLAMA_DTYPE_F32 {
                    continue;
                }
                let (prompt, want) = (tokens(&case["prompt"]), tokens(&case["tokens"]));
                let got = model.one(&prompt, &with(id, ignoring_eos(want.len())));
                assert_eq!(got.tokens, want, "{what}");
                let logprobs = floats(&case["logprobs"]);
                assert_close(&got.logprobs, &logprobs, LOGPROB_TOLERANCE, &what);
            }
            eprintln!("{name}: {error} on {dtype}, {without} without the adapter");
            assert!(error <= 1e-2 + bound * without, "{name}: {error} {without}");
        }
    }
}

/// Law four: the bits of a sequence do not depend on the adapters of those in the same steps.
#[test]
fn rows_of_different_adapters_share_steps_and_change_no_bit_of_each_other() {
    for dtype in [
        LLAMA_DTYPE_AUTO,
        LLAMA_DTYPE_F32,
        LLAMA_DTYPE_INT8,
        LLAMA_DTYPE_INT4,
    ] {
        let model = merged(&data("base"), &[], &[], dtype).unwrap();
        let plain = model.add_adapter(&data("plain"), 1.0).unwrap();
        let other = model.add_adapter(&data("rslora-patterns"), 0.5).unwrap();
        let prompt = |seed: i32| (0..20).map(|i| 3 + (seed * 37 + i * 11) % 250).collect();
        let works: [(u32, Vec<i32>); 4] = [
            (plain, prompt(1)),
            (0, prompt(2)),
            (other, prompt(3)),
            (plain, prompt(4)),
        ];
        let run = |model: &Model, (id, prompt): &(u32, Vec<i32>)| {
            let mut options = with(*id, ignoring_eos(40));
            options.flags |= LLAMA_GEN_ECHO;
            model.one(prompt, &options)
        };
        let alone: Vec<_> = works.iter().map(|work| run(&model, work)).collect();
        assert_ne!(
            alone[0].tokens[20..],
            run(&model, &(0, prompt(1))).tokens[20..]
        );
        // When threads begin is not ours to say: again until they have met.
        let met = (0..100).any(|_| {
            let before = model.timings().steps;
            let together: Vec<_> = std::thread::scope(|scope| {
                let (model, run) = (&model, &run);
                let each = |work| scope.spawn(move || run(model, work));
                let threads = works.each_ref().map(each);
                threads.map(|thread| thread.join().unwrap()).into()
            });
            for (alone, together) in alone.iter().zip(&together) {
                assert_eq!(alone.tokens, together.tokens);
                assert_eq!(alone.logprobs, together.logprobs);
            }
            model.timings().steps - before < 100
        });
        assert!(met, "four calls of 40 tokens never shared steps");
    }
}

/// Keys and values of an adapter are its own.
#[test]
fn pages_of_different_adapters_are_told_apart() {
    let model = merged(&data("base"), &[], &[], 0).unwrap();
    let prompt: Vec<i32> = (0..40).map(|i| 3 + i * 7 % 290).collect();
    let run = |model: &Model, id| model.one(&prompt, &with(id, ignoring_eos(4)));
    let base = run(&model, 0);
    assert_eq!(run(&model, 0).cached_tokens, 32);
    let plain = model.add_adapter(&data("plain"), 1.0).unwrap();
    let half = model.add_adapter(&data("plain"), 0.5).unwrap();
    let first = run(&model, plain);
    assert_eq!(first.cached_tokens, 0);
    assert_eq!(run(&model, half).cached_tokens, 0);
    let again = run(&model, plain);
    assert_eq!(again.cached_tokens, 32);
    assert_eq!(
        (&again.tokens, &again.logprobs),
        (&first.tokens, &first.logprobs)
    );
    assert_ne!(first.logprobs, base.logprobs);
    // Another handle, whose cache is empty.
    let fresh = merged(&data("base"), &[], &[], 0).unwrap();
    let id = fresh.add_adapter(&data("plain"), 1.0).unwrap();
    assert_eq!(run(&fresh, id).logprobs, first.logprobs);
}

#[test]
fn adapters_come_and_go_while_the_handle_runs() {
    let model = merged(&data("base"), &[], &[], 0).unwrap();
    let prompt = vec![3, 5, 7, 11];
    let id = model.add_adapter(&data("plain"), 1.0).unwrap();
    assert_eq!(id, 1);
    let options = with(id, ignoring_eos(50));
    let whole = model.one(&prompt, &options).tokens;
    // Dropped while a stream runs: that one goes on as it began.
    let stream = Pulled::open(&model, &prompt, &options);
    let mut got = vec![stream.next().unwrap()];
    model.drop_adapter(id).unwrap();
    let unknown = |name: &str, id: u32| {
        let sentence =
            format!("{name} is {id}, must be the id of an adapter that was added and not dropped");
        (LLAMA_E_INVALID_ARGUMENT, sentence)
    };
    let refused = model
        .generate(std::slice::from_ref(&prompt), &options)
        .unwrap_err();
    assert_eq!(refused, unknown("adapter", id));
    while let Some(token) = stream.next() {
        got.push(token);
    }
    assert_eq!(got, whole);
    assert_eq!(model.drop_adapter(id).unwrap_err(), unknown("id", id));
    assert_eq!(model.drop_adapter(0).unwrap_err(), unknown("id", 0));
    // A number is never given again.
    let next = model.add_adapter(&data("plain"), 1.0).unwrap();
    assert_eq!(next, 2);
    assert_eq!(model.one(&prompt, &with(next, options)).tokens, whole);
}

#[test]
fn adapters_that_only_merging_takes_are_refused() {
    let model = merged(&data("base"), &[], &[], 0).unwrap();
    let (status, sentence) = model.add_adapter(&data("with-head"), 1.0).unwrap_err();
    assert_eq!(status, LLAMA_E_UNSUPPORTED);
    let expected = "tensor `base_model.model.lm_head.weight` takes the place of a matrix \
                    (modules_to_save): such an adapter can only be merged while the model is loaded";
    assert!(sentence.ends_with(expected), "{sentence}");
    let (status, sentence) = model
        .add_adapter(&data("plain"), f32::INFINITY)
        .unwrap_err();
    assert_eq!(
        (status, sentence.as_str()),
        (
            LLAMA_E_INVALID_ARGUMENT,
            "scale is inf, must be a finite number"
        )
    );
    let (status, _) = model.add_adapter(&data("base"), 1.0).unwrap_err();
    assert_eq!(status, LLAMA_E_IO);
    // A failure takes no number.
    assert_eq!(model.add_adapter(&data("plain"), 1.0).unwrap(), 1);
}

/// Numbers, and products of scales, that become infinite where they are kept. All rows of such an
/// adapter would be NaN.
#[test]
fn adapters_that_are_not_finite_when_kept_are_refused() {
    let dir = TempDir::new();
    let config = std::fs::read(data("plain/adapter_config.json")).unwrap();
    dir.file("adapter_config.json", config);
    let tensor = |which: &str, shape: [usize; 2]| {
        let mut bytes = vec![0; 4 * 4 * 32];
        // Finite as float32, and beyond the greatest bfloat16.
        bytes[20..24].copy_from_slice(&f32::MAX.to_le_bytes());
        write::Tensor {
            name: format!("base_model.model.model.layers.0.self_attn.o_proj.lora_{which}.weight"),
            dtype: "F32",
            shape: shape.into(),
            bytes,
        }
    };
    let tensors = [tensor("A", [4, 32]), tensor("B", [32, 4])];
    dir.file("adapter_model.safetensors", write::safetensors(&tensors, 0));
    let on = |dtype| merged(&data("base"), &[], &[], dtype).unwrap();
    let bf16 = on(LLAMA_DTYPE_BF16);
    let (status, sentence) = bf16.add_adapter(dir.path(), 1.0).unwrap_err();
    assert_eq!(status, LLAMA_E_FORMAT);
    assert!(
        sentence.contains("adapter_model.safetensors")
            && sentence.contains("finite as bf16")
            && sentence.contains("340282350000000000000000000000000000000"),
        "{sentence}"
    );
    assert_eq!(on(LLAMA_DTYPE_F32).add_adapter(dir.path(), 1.0), Ok(1));
    // alpha / r is 2.
    let added = bf16.add_adapter(&data("plain"), f32::MAX).unwrap_err();
    let merging = merged(
        &data("base"),
        &[data("plain")],
        &[f32::MAX],
        LLAMA_DTYPE_F32,
    );
    for (status, sentence) in [added, merging.err().unwrap()] {
        assert_eq!(status, LLAMA_E_FORMAT, "{sentence}");
        assert!(
            sentence.contains("`lora_alpha` is 8") && sentence.contains("weight is inf"),
            "{sentence}"
        );
    }
}

/// By what is written about it: the files of this one would be larger than any memory.
#[test]
fn a_rank_over_the_limit_is_refused_before_anything_is_read() {
    let dir = TempDir::new();
    let mut config = json(&data("plain/adapter_config.json"));
    let rank = 1_000_000_000u64;
    config["r"] = rank.into();
    dir.file("adapter_config.json", config.to_string());
    let (a, b) = (64 * rank as usize, 128 * rank as usize);
    let entry = |which: &str, shape: [usize; 2], from, to| {
        let name = format!("base_model.model.model.layers.0.self_attn.o_proj.lora_{which}.weight");
        write::entry(&name, "BF16", &shape, from, to)
    };
    let header = format!(
        "{{{},{}}}",
        entry("A", [rank as usize, 32], 0, a),
        entry("B", [32, rank as usize], a, b)
    );
    let beginning = write::raw_safetensors(&header, &[]);
    let len = beginning.len() as u64 + b as u64;
    let path = dir.path().join("adapter_model.safetensors");
    dir.file("adapter_model.safetensors", beginning);
    let file = std::fs::File::options().write(true).open(path).unwrap();
    file.set_len(len).unwrap();
    let model = merged(&data("base"), &[], &[], 0).unwrap();
    let (status, sentence) = model.add_adapter(dir.path(), 1.0).unwrap_err();
    assert_eq!(status, LLAMA_E_UNSUPPORTED, "{sentence}");
    assert!(
        sentence.contains("`model.layers.0.self_attn.o_proj` has rank 1000000000")
            && sentence.contains("at most 256"),
        "{sentence}"
    );
}
