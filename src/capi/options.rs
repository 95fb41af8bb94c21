//! The options of a generation: their defaults, and a caller's struct to [`GenerateOptions`].
#![allow(unsafe_code)]

use super::failure::{Failure, Outcome};
use super::types::*;
use super::{args, cancel, grammar, layout};
use crate::engine::request::{Bias, EarlyStopping, MAX_LIST, MAX_STOP_BYTES};
use crate::engine::{GenerateOptions, Speculation};
use crate::reserve;
use std::time::Instant;

/// The most stop strings of a call.
const MAX_STOP: usize = 1024;

const KNOWN_FLAGS: u32 = LLAMA_GEN_ECHO
    | LLAMA_GEN_LOGPROBS
    | LLAMA_GEN_NO_WAIT
    | LLAMA_GEN_IGNORE_EOS
    | LLAMA_GEN_BEAM_EVENTS
    | LLAMA_GEN_SPECIAL;

pub(super) fn default_options() -> llama_generate_options {
    let defaults = GenerateOptions::default();
    llama_generate_options {
        struct_size: size_of::<llama_generate_options>() as u32,
        max_gen_len: LLAMABI_MAX_GEN_LEN_DEFAULT,
        temperature: defaults.temperature,
        top_p: defaults.top_p,
        repetition_penalty: defaults.repetition_penalty,
        length_penalty: defaults.length_penalty,
        // In every other field, 0 means what was before there was the field.
        ..layout::zeros()
    }
}

// Section: Generating

/// Fill `o` with defaults. Pass `sizeof(llama_generate_options)`, which is kept in `o`.
///
/// Writes nothing if `o` is NULL or `struct_size` is above 4096. Any thread may call this.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn llama_generate_options_init(
    o: *mut llama_generate_options,
    struct_size: usize,
) {
    guard!(else (), {
        let defaults =
            llama_generate_options { struct_size: struct_size as u32, ..default_options() };
        // SAFETY: by contract `o` is NULL or has struct_size writable bytes.
        unsafe { layout::init(o, struct_size, &defaults) }
    })
}

/// Reads a caller's options. NULL means defaults.
///
/// # Safety
/// `o` is NULL or as the header demands.
pub(super) unsafe fn read_options(
    o: *const llama_generate_options,
) -> Outcome<llama_generate_options> {
    if o.is_null() {
        return Ok(default_options());
    }
    // SAFETY: by this function's contract.
    unsafe { layout::read("o", o, default_options()) }
}

/// Makes the engine's options of a caller's. The engine checks their ranges.
///
/// # Safety
/// The pointers in `o` are as the header demands.
pub(super) unsafe fn engine_options(o: &llama_generate_options) -> Outcome<GenerateOptions> {
    if o.flags & !KNOWN_FLAGS != 0 {
        return Err(Failure::invalid(format!(
            "flags is {:#x}, known LLAMA_GEN_* bits are {KNOWN_FLAGS:#x}",
            o.flags
        )));
    }
    if o.n_stop > MAX_STOP {
        return Err(Failure::invalid(format!(
            "n_stop is {}, must be at most {MAX_STOP}",
            o.n_stop
        )));
    }
    let mut stop = reserve::room("the stop strings", o.n_stop)?;
    // SAFETY: by this function's contract.
    for (i, &text) in unsafe { args::slice("stop", o.stop, o.n_stop) }?
        .iter()
        .enumerate()
    {
        // SAFETY: as above.
        let text = unsafe { args::text(format_args!("stop[{i}]"), text, usize::MAX) }?;
        if text.len() > MAX_STOP_BYTES {
            return Err(Failure::invalid(format!(
                "stop[{i}] is {} bytes long, must be at most {MAX_STOP_BYTES}",
                text.len()
            )));
        }
        let mut copy = String::new();
        reserve::string("a stop string", &mut copy, text.len())?;
        copy.push_str(text);
        stop.push(copy);
    }
    // SAFETY: by this function's contract.
    let biases = unsafe { list("logit_bias", o.logit_bias, o.n_logit_bias) }?;
    let mut logit_bias = reserve::room("logit_bias", biases.len())?;
    logit_bias.extend(biases.iter().map(|b| Bias {
        token: b.token,
        bias: b.bias,
    }));
    // SAFETY: as above.
    let stop_tokens = unsafe { list("stop_tokens", o.stop_tokens, o.n_stop_tokens) }?;
    // SAFETY: as above.
    let predicted = unsafe { list("predicted", o.predicted, o.n_predicted) }?;
    Ok(GenerateOptions {
        streaming: true,
        min_gen_len: o.min_gen_len as usize,
        no_repeat_ngram_size: o.no_repeat_ngram_size as usize,
        presence_penalty: o.presence_penalty,
        frequency_penalty: o.frequency_penalty,
        typical_p: o.typical_p,
        epsilon_cutoff: o.epsilon_cutoff,
        eta_cutoff: o.eta_cutoff,
        max_time_ms: o.max_time_ms,
        logit_bias,
        stop_tokens: reserve::copy("stop_tokens", stop_tokens)?,
        // SAFETY: as above.
        bad_words: unsafe { bad_words(o) }?,
        echo: o.flags & LLAMA_GEN_ECHO != 0,
        logprobs: o.flags & LLAMA_GEN_LOGPROBS != 0,
        no_wait: o.flags & LLAMA_GEN_NO_WAIT != 0,
        ignore_eos: o.flags & LLAMA_GEN_IGNORE_EOS != 0,
        special: o.flags & LLAMA_GEN_SPECIAL != 0,
        max_gen_len: (o.max_gen_len != LLAMABI_MAX_GEN_LEN_DEFAULT)
            .then_some(o.max_gen_len as usize),
        temperature: o.temperature,
        top_p: o.top_p,
        top_k: o.top_k,
        min_p: o.min_p,
        repetition_penalty: o.repetition_penalty,
        seed: o.seed,
        stop,
        top_logprobs: o.top_logprobs as usize,
        cache_salt: o.cache_salt,
        adapter: o.adapter,
        ask_logits: o.on_logits.is_some(),
        speculation: speculation(o.speculation)?,
        draft_len: o.draft_len as usize,
        predicted: reserve::copy("predicted", predicted)?,
        num_return_sequences: samples(o),
        num_beams: o.num_beams.max(1) as usize,
        length_penalty: o.length_penalty,
        early_stopping: early_stopping(o.early_stopping)?,
        beam_events: o.flags & LLAMA_GEN_BEAM_EVENTS != 0,
        // SAFETY: as above.
        force_words: unsafe { force_words(o) }?,
        grammar: grammar::grammar(o.grammar)?,
        contrast_beta: o.contrast_beta,
        contrast_alpha: o.contrast_alpha,
        publishes: true,
        asked_at: Some(Instant::now()),
        cancel: cancel::flag(o.cancel)?,
    })
}

fn speculation(value: i32) -> Outcome<Speculation> {
    match value {
        LLAMA_SPEC_OFF => Ok(Speculation::Off),
        LLAMA_SPEC_AUTO => Ok(Speculation::Auto),
        LLAMA_SPEC_NGRAM => Ok(Speculation::NGram),
        LLAMA_SPEC_DRAFT => Ok(Speculation::Draft),
        LLAMA_SPEC_MEDUSA => Ok(Speculation::Medusa),
        _ => Err(Failure::invalid(format!(
            "speculation is {value}, must be LLAMA_SPEC_OFF ({LLAMA_SPEC_OFF}), AUTO \
             ({LLAMA_SPEC_AUTO}), NGRAM ({LLAMA_SPEC_NGRAM}), DRAFT ({LLAMA_SPEC_DRAFT}) or MEDUSA \
             ({LLAMA_SPEC_MEDUSA})"
        ))),
    }
}

/// A list of the caller's, whose length is checked before it is looked at.
///
/// # Safety
/// `p` is NULL or points to `n` elements that stay unchanged for `'a`.
unsafe fn list<'a, T>(name: &str, p: *const T, n: usize) -> Outcome<&'a [T]> {
    if n > MAX_LIST {
        let sentence = format!("n_{name} is {n}, must be at most {MAX_LIST}");
        return Err(Failure::invalid(sentence));
    }
    // SAFETY: by this function's contract.
    unsafe { args::slice(name, p, n) }
}

/// Returns the bad words, which lie end to end.
///
/// # Safety
/// As [`engine_options`].
unsafe fn bad_words(o: &llama_generate_options) -> Outcome<Vec<Vec<i32>>> {
    if o.n_bad_words > MAX_LIST {
        let sentence = format!(
            "n_bad_words is {}, must be at most {MAX_LIST}",
            o.n_bad_words
        );
        return Err(Failure::invalid(sentence));
    }
    // SAFETY: by this function's contract.
    let (lens, total) = unsafe { lengths("bad_word_lens", o.bad_word_lens, o.n_bad_words) }?;
    // SAFETY: by this function's contract.
    let mut rest = unsafe { args::slice("bad_words", o.bad_words, total) }?;
    let mut words = reserve::room("bad_words", lens.len())?;
    for &len in lens {
        let (word, after) = rest.split_at(len);
        words.push(reserve::copy("a bad word", word)?);
        rest = after;
    }
    Ok(words)
}

/// Lengths of the caller's, which add up to what may be.
///
/// # Safety
/// `p` is NULL or points to `n` elements that stay unchanged for `'a`.
unsafe fn lengths<'a>(name: &str, p: *const usize, n: usize) -> Outcome<(&'a [usize], usize)> {
    // SAFETY: by this function's contract.
    let lens = unsafe { args::slice(name, p, n) }?;
    let total = lens.iter().copied().fold(0, usize::saturating_add);
    match total <= MAX_LIST {
        true => Ok((lens, total)),
        false => Err(Failure::invalid(format!(
            "{name} add up to {total}, must be at most {MAX_LIST}"
        ))),
    }
}

/// The groups of phrases, which lie end to end.
///
/// # Safety
/// As [`engine_options`].
unsafe fn force_words(o: &llama_generate_options) -> Outcome<Vec<Vec<Vec<i32>>>> {
    let n = o.n_force_groups;
    if n > MAX_LIST {
        let sentence = format!("n_force_groups is {n}, must be at most {MAX_LIST}");
        return Err(Failure::invalid(sentence));
    }
    // SAFETY: by this function's contract, here and below.
    let (group_lens, n_words) = unsafe { lengths("force_group_lens", o.force_group_lens, n) }?;
    // SAFETY: as above.
    let words = unsafe { lengths("force_word_lens", o.force_word_lens, n_words) }?;
    let (mut lens, n_tokens) = words;
    // SAFETY: as above.
    let mut rest = unsafe { args::slice("force_words", o.force_words, n_tokens) }?;
    let mut groups = reserve::room("force_words", n)?;
    for &n_words in group_lens {
        let (own, after) = lens.split_at(n_words);
        lens = after;
        let mut group = reserve::room("force_words", n_words)?;
        for &len in own {
            let (word, after) = rest.split_at(len);
            group.push(reserve::copy("a phrase", word)?);
            rest = after;
        }
        groups.push(group);
    }
    Ok(groups)
}

fn early_stopping(given: i32) -> Outcome<EarlyStopping> {
    match given {
        LLAMA_EARLY_FALSE => Ok(EarlyStopping::False),
        LLAMA_EARLY_TRUE => Ok(EarlyStopping::True),
        LLAMA_EARLY_NEVER => Ok(EarlyStopping::Never),
        _ => Err(Failure::invalid(format!(
            "early_stopping is {given}, must be LLAMA_EARLY_FALSE (0), _TRUE (1) or _NEVER (2)"
        ))),
    }
}

/// Returns the number of sequences of each prompt.
pub(super) fn samples(o: &llama_generate_options) -> usize {
    o.num_return_sequences.max(1) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn defaults_are_the_engines() {
        // SAFETY: every pointer is NULL.
        let mut got = unsafe { engine_options(&default_options()) }
            .unwrap_or_else(|e| panic!("{}", e.message));
        got.asked_at = None;
        let want = GenerateOptions::default();
        assert_eq!(format!("{got:#?}"), format!("{want:#?}"));
    }
}
