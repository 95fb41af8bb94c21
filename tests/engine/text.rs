//! From tokens to text: whole code points, and stop strings wherever the tokens break them.

use crate::support::*;
use llamabi::Token;
use llamabi::engine::{FinishReason, GenerateOptions};

fn bytes(text: &str) -> Vec<Token> {
    text.bytes().map(|byte| BYTE + Token::from(byte)).collect()
}

/// The texts of the events that answer `answer`, and the finishing text and reason.
fn texts(answer: &[Token], stop: &[&str]) -> (Vec<String>, String, FinishReason) {
    use llamabi::engine::{Event, Next};
    let (host, _) = Setup::default().start(say(answer));
    let stop = stop.iter().map(|s| s.to_string()).collect();
    let stream = host
        .submit(vec![prompt("x")], GenerateOptions { stop, ..greedy() })
        .unwrap();
    let mut texts = Vec::new();
    loop {
        match stream.next(None).unwrap() {
            Next::Event(Event::Token(e)) => texts.push(e.text),
            Next::Event(Event::Finish(e)) => return (texts, e.text, e.reason),
            other => panic!("{other:?}"),
        }
    }
}

fn check_texts(answer: &[Token], stop: &[&str], want: &[&str], end: &str, reason: FinishReason) {
    let (got, got_end, got_reason) = texts(answer, stop);
    assert_eq!(
        (&got[..], &got_end[..], got_reason),
        (&want.map_strings()[..], end, reason)
    );
}

trait MapStrings {
    fn map_strings(&self) -> Vec<String>;
}

impl MapStrings for [&str] {
    fn map_strings(&self) -> Vec<String> {
        self.iter().map(|s| s.to_string()).collect()
    }
}

use FinishReason::{Stop as Eos, StopString};

#[test]
fn half_a_code_point_waits_for_its_other_half() {
    check_texts(&bytes("é"), &[], &["", "é"], "", Eos);
    check_texts(
        &[bytes("日"), ids("a")].concat(),
        &[],
        &["", "", "日", "a"],
        "",
        Eos,
    );
    check_texts(&bytes("日")[..2], &[], &["", ""], "\u{FFFD}\u{FFFD}", Eos);
    let broken = [&bytes("日")[..2], &ids("a")[..]].concat();
    check_texts(&broken, &[], &["", "", "\u{FFFD}\u{FFFD}a"], "", Eos);
}

#[test]
fn a_stop_string_is_found_across_tokens_and_code_points() {
    check_texts(&ids("abcd"), &["bc"], &["a", "", ""], "", StopString);
    check_texts(&ids("abcd"), &["d"], &["a", "b", "c", ""], "", StopString);
    check_texts(&ids("abcd"), &["abcd"], &["", "", "", ""], "", StopString);
    // Within one token, and with text of that token before it.
    check_texts(&[30, 31], &["he"], &["t"], "", StopString);
    // In the middle of a code point's bytes nothing matches yet.
    let split = [ids("a"), bytes("é"), ids("b")].concat();
    check_texts(&split, &["é"], &["a", "", ""], "", StopString);
    check_texts(&split, &["éb"], &["a", "", "", ""], "", StopString);
    check_texts(&split, &["éc"], &["a", "", "", "éb"], "", Eos);
}

#[test]
fn what_may_begin_a_stop_string_is_held_and_given_as_soon_as_it_cannot() {
    check_texts(&ids("ababx"), &["abc"], &["", "", "ab", "", "abx"], "", Eos);
    check_texts(&ids("aab"), &["aac"], &["", "", "aab"], "", Eos);
    check_texts(&ids("aaab"), &["aab"], &["", "", "a", ""], "", StopString);
    check_texts(&ids("xab"), &["abc"], &["x", "", ""], "ab", Eos);
    // The held end is cut off by a stop string that the last stray bytes complete.
    let stray = [ids("a"), bytes("é")[..1].to_vec()].concat();
    check_texts(&stray, &["a\u{FFFD}"], &["", ""], "", StopString);
}

#[test]
fn of_several_stop_strings_the_earliest_match_counts() {
    check_texts(
        &ids("abcdef"),
        &["de", "bc"],
        &["a", "", ""],
        "",
        StopString,
    );
    // Both complete with the same token: the one that begins first.
    check_texts(&[3, 33, 4], &["本", "日本"], &["a", ""], "", StopString);
    check_texts(&[30], &["he", "t", "e"], &[""], "", StopString);
    // One holds back more than the other.
    check_texts(
        &ids("abxyz"),
        &["abc", "bq"],
        &["", "", "abx", "y", "z"],
        "",
        Eos,
    );
}

#[test]
fn tokens_keep_what_was_generated_and_text_is_cut() {
    let (host, _) = Setup::default().start(say(&[3, 30, 4]));
    let options = GenerateOptions {
        stop: vec!["he".into()],
        logprobs: true,
        ..greedy()
    };
    let got = host.one(prompt("x"), options);
    assert_eq!((&got.tokens[..], &got.text[..]), (&[3, 30][..], "at"));
    assert_eq!((got.logprobs.len(), got.stats.generated_tokens), (2, 2));
    host.assert_empty();
}

#[test]
fn a_stop_string_in_the_echoed_prompt_does_not_stop() {
    let (host, _) = Setup::default().start(say(&ids("yxy")));
    let options = GenerateOptions {
        echo: true,
        stop: vec!["x".into()],
        ..greedy()
    };
    let got = host.one(prompt("axbx"), options);
    assert_eq!((&got.text[..], got.reason()), ("axbxy", StopString));
    // Nor does one that only ends in the generated part.
    let options = GenerateOptions {
        echo: true,
        stop: vec!["xy".into()],
        ..greedy()
    };
    let got = host.one(prompt("ax"), options);
    assert_eq!((&got.text[..], got.reason()), ("axy", StopString));
}

#[test]
fn a_stop_string_may_begin_with_the_space_that_the_first_token_loses() {
    // The model writes " he", of which the text is "he".
    check_texts(&[31, 3], &[" he"], &[""], "", StopString);
    check_texts(&[31, 3], &[" h"], &[""], "", StopString);
    check_texts(&[31, 3], &[" hea"], &["", ""], "", StopString);
    check_texts(&[31, 4], &[" hea"], &["", "heb"], "", Eos);
    check_texts(&[31], &[" hea"], &[""], "he", Eos);
    check_texts(&[29, 3], &[" a"], &["", ""], "", StopString);
    check_texts(&[29, 3], &[" b", "a"], &["", ""], "", StopString);
    // Only the first: further on a space is in the text.
    check_texts(&[3, 31, 3], &[" he"], &["a", ""], "", StopString);
    check_texts(&[30, 31], &["e h"], &["th", ""], "", StopString);
    // A space alone is one that the caller gets.
    check_texts(&[31, 31], &[" "], &["he", ""], "", StopString);
    check_texts(&[29, 29, 3], &["  "], &["", "", " a"], "", Eos);
    check_texts(&[29, 29, 29], &["  "], &["", "", ""], "", StopString);
    // Bytes take no space along.
    check_texts(&bytes(" a"), &[" a"], &["", ""], "", StopString);
}
