//! Medusa heads: whatever they guess changes nothing, and what they guess right saves steps.

use crate::drafts::{kinds, tokens};
use crate::support::*;
use llamabi::engine::{GenerateOptions, MAX_DRAFTS, Speculation};

fn setup() -> Setup {
    Setup {
        max_wanted: 40,
        ..Setup::default()
    }
}

#[test]
fn whatever_heads_guess_texts_are_the_same() {
    let setup = setup();
    let prompts = ["abcdef", "", "thethethe"].map(prompt);
    let (mut drafted, mut accepted) = (0, 0);
    let agreements = [16, 0, 8, 14].into_iter().cycle();
    for (at, (options, agrees)) in kinds().into_iter().zip(agreements).enumerate() {
        let n = options.num_return_sequences;
        let want: Vec<Output> = prompts
            .iter()
            .flat_map(|prompt| std::iter::repeat_n(tokens(prompt), n))
            .zip(0..)
            .map(|(tokens, i)| simulate(&mut hash_think, &tokens, i, &options, setup.max_seq_len))
            .collect();
        for (speculation, draft_len) in [
            (Speculation::Medusa, 0),
            (Speculation::Medusa, 2),
            (Speculation::Auto, MAX_DRAFTS),
        ] {
            let options = GenerateOptions {
                speculation,
                draft_len,
                ..options.clone()
            };
            let heads = (1 + at % 5, Box::new(half_hash_think(agrees)) as Box<Think>);
            let (host, _) = setup.start_with_heads(at % 2 == 1, hash_think, heads);
            let together = host.run(prompts.to_vec(), options.clone());
            let alone = host.run(prompts[..1].to_vec(), options);
            for (got, want) in together.iter().zip(&want).chain(alone.iter().zip(&want)) {
                assert_same(got, want);
                drafted += got.stats.drafted_tokens;
                accepted += got.stats.accepted_tokens;
            }
            host.assert_empty();
        }
    }
    assert!(
        accepted > 50 && accepted < drafted,
        "{accepted} of {drafted}"
    );
}

#[test]
fn right_guesses_save_steps() {
    let setup = setup();
    for ahead in [false, true] {
        let heads = (3, Box::new(hash_think) as Box<Think>);
        let (host, probe) = setup.start_with_heads(ahead, hash_think, heads);
        let options = GenerateOptions {
            temperature: 0.0,
            ignore_eos: true,
            max_gen_len: Some(41),
            speculation: Speculation::Medusa,
            // Of more there is nothing to be had than there are heads.
            draft_len: 7,
            ..GenerateOptions::default()
        };
        // What would end the text is no draft, and this model likes to end.
        let ends = |got: &Output| got.tokens.iter().filter(|token| **token == EOS).count();
        let got = host.one(prompt("abcdef"), options.clone());
        let steps = probe.take_steps().len();
        let drafted = got.stats.drafted_tokens;
        assert_eq!(drafted, got.stats.accepted_tokens, "the heads are right");
        // The prompt gives one token, and a step four, but where the text would end.
        assert!(
            steps <= 11 + 2 * ends(&got),
            "{steps} steps, {} ends",
            ends(&got)
        );
        assert_eq!(steps + drafted as usize, 41);
        // Several at once, and samples, which share the row of their prompt.
        let options = GenerateOptions {
            num_return_sequences: 2,
            ..options
        };
        let both = host.run(vec![prompt("abcdef"), prompt("thethethe")], options);
        assert!(both.iter().all(|out| out.stats.drafted_tokens > 20));
        for out in &both {
            let stats = &out.stats;
            assert_eq!(stats.drafted_tokens, stats.accepted_tokens, "its own row");
        }
        assert_same(&both[0], &got);
    }
}

/// Where guesses do not pay, they are asked for less and less often.
#[test]
fn wrong_guesses_cost_little() {
    let heads = (3, Box::new(half_hash_think(0)) as Box<Think>);
    let (host, _) = setup().start_with_heads(false, hash_think, heads);
    let options = GenerateOptions {
        temperature: 1.0,
        seed: 8,
        ignore_eos: true,
        max_gen_len: Some(41),
        speculation: Speculation::Medusa,
        ..GenerateOptions::default()
    };
    let got = host.one(prompt("abcdef"), options);
    assert!(
        got.stats.drafted_tokens < 20,
        "{}",
        got.stats.drafted_tokens
    );
}

#[test]
fn heads_that_are_not_there_cannot_be_asked() {
    let host = setup().start_ahead(false, hash_think).0;
    let options = GenerateOptions {
        speculation: Speculation::Medusa,
        ..GenerateOptions::default()
    };
    let error = host.submit(vec![prompt("a")], options).err().unwrap();
    assert!(error.to_string().contains("medusa_dir"), "{error}");
}
