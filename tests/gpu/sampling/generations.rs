//! Generations whose tokens a device chooses beside those whose tokens the host chooses.

use super::GIB;
use crate::common::reference;
use crate::emu::{Emu, real};
use llamabi::engine::request::Bias;
use llamabi::engine::{GenerateOptions, Prompt};
use llamabi::grammar::Source;
use llamabi::llama::Sequence;
use llamabi::{BuildOptions, Llama, Token};
use std::sync::Arc;

/// A sequence is the same wherever it is sampled.
#[test]
fn are_the_same_on_device_and_host() {
    let open = || {
        let options = BuildOptions {
            max_seq_len: 64,
            max_batch_size: 4,
            ..BuildOptions::default()
        };
        let directory = reference("gqa-bf16/meta");
        match real::cuda() {
            Some(cuda) => Llama::build_on(cuda, &directory, None, &options, &mut |_| true),
            None => Llama::build_on(Emu::new(GIB, 5), &directory, None, &options, &mut |_| true),
        }
        .unwrap()
    };
    let prompts: Vec<Vec<Token>> = [1, 5, 20]
        .iter()
        .map(|&n| (0..n).map(|i| 1 + i * 37 % 500).collect())
        .collect();
    let base = GenerateOptions {
        logprobs: true,
        ignore_eos: true,
        max_gen_len: Some(8),
        seed: 9,
        ..GenerateOptions::default()
    };
    let (device, host) = (open(), open());
    let grammar_of =
        |llama: &Llama| Arc::new(llama.grammar(Source::Regex("[a-z ]{3,30}")).unwrap());
    let generate = |llama: &Llama, prompts: &[Vec<Token>], options: GenerateOptions| {
        let prompts = prompts.iter().cloned().map(Prompt::Tokens).collect();
        let result = llama.generate(prompts, options, &mut |_| true).unwrap();
        result.sequences
    };
    let shown = |s: &Sequence, n: usize| {
        let logprobs: Vec<u32> = s.logprobs.iter().map(|l| l.to_bits()).collect();
        let top: Vec<_> = s.top.iter().map(|t| t[..n.min(t.len())].to_vec()).collect();
        (s.tokens.clone(), logprobs, top)
    };
    let strategies = [
        base.clone(),
        GenerateOptions {
            temperature: 0.0,
            ..base.clone()
        },
        GenerateOptions {
            temperature: 0.0,
            repetition_penalty: 1.3,
            ..base.clone()
        },
        GenerateOptions {
            temperature: 1.0,
            top_p: 1.0,
            ..base.clone()
        },
        GenerateOptions {
            temperature: 2.0,
            top_k: 20,
            repetition_penalty: 1.2,
            ..base.clone()
        },
        GenerateOptions {
            temperature: 1.5,
            top_p: 1.0,
            min_p: 0.1,
            ..base.clone()
        },
        GenerateOptions {
            temperature: 1.0,
            top_k: 50,
            top_p: 0.8,
            min_p: 0.02,
            echo: true,
            ..base.clone()
        },
        // Edits that depend on the last token, and some that do not.
        GenerateOptions {
            temperature: 1.0,
            presence_penalty: 0.7,
            frequency_penalty: 0.2,
            repetition_penalty: 1.1,
            no_repeat_ngram_size: 2,
            ..base.clone()
        },
        GenerateOptions {
            temperature: 0.7,
            logit_bias: vec![
                Bias {
                    token: 31,
                    bias: 4.0,
                },
                Bias {
                    token: 7,
                    bias: f32::NEG_INFINITY,
                },
            ],
            stop_tokens: vec![31],
            min_gen_len: 3,
            ignore_eos: false,
            ..base.clone()
        },
    ];
    let in_grammar = [
        GenerateOptions {
            temperature: 1.0,
            ignore_eos: false,
            ..base.clone()
        },
        GenerateOptions {
            temperature: 0.0,
            presence_penalty: 0.5,
            ignore_eos: false,
            ..base
        },
    ];
    let free = strategies.into_iter().map(|options| (options, false));
    for (options, is_in_grammar) in free.chain(in_grammar.map(|options| (options, true))) {
        // Grammars belong to a handle.
        let of = |llama: &Llama, options: GenerateOptions| GenerateOptions {
            grammar: is_in_grammar.then(|| grammar_of(llama)),
            ..options
        };
        // More than the device finds, so the host chooses.
        let more = GenerateOptions {
            top_logprobs: 200,
            ..options.clone()
        };
        let few = GenerateOptions {
            top_logprobs: 3,
            ..options.clone()
        };
        let want: Vec<_> = generate(&host, &prompts, of(&host, more))
            .iter()
            .map(|s| shown(s, 3))
            .collect();
        let got: Vec<_> = generate(&device, &prompts, of(&device, few))
            .iter()
            .map(|s| shown(s, 3))
            .collect();
        assert_eq!(got, want, "{options:?}");
        // The seed's stream depends on the number of the sequence, so only the first is the same
        // alone.
        let alone = generate(&device, &prompts[..1], of(&device, options));
        assert_eq!(alone[0].tokens, want[0].0);
        let bits: Vec<u32> = alone[0].logprobs.iter().map(|l| l.to_bits()).collect();
        assert_eq!(bits, want[0].1);
    }
}
