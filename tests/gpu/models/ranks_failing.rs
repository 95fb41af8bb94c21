//! Ranks on emulated devices that fail, are silent, are told to end, or are asked for what they do
//! not have.

use super::memory::assert_returned;
use super::ranks::{devices, on};
use super::*;
use llamabi::Cancel;
use llamabi::capi::LLAMA_E_PEER;
use llamabi::engine::Next;

/// A device that has less memory than it says, or that fails: the rank is named, the handle is
/// poisoned, nothing hangs, and nothing is left.
#[test]
fn a_rank_that_fails_is_named() {
    if real() {
        return println!("only on emulated devices");
    }
    let dir = reference("gqa-bf16/meta");
    for rank in 0..2 {
        let mut all = devices(2, 7);
        all[rank] = Emu::with_promise(200_000, GIB, 9);
        let error = on(&all, &dir, &options(None)).err().unwrap();
        let text = error.to_string();
        assert_eq!(status_of(&error), LLAMA_E_DEVICE_MEMORY, "{text}");
        assert!(text.starts_with(&format!("rank {rank}: ")), "{text}");
        assert!(text.contains("the weights "), "{text}");
        all.iter().for_each(|device| assert_returned(device));

        for good in [0, 7, 40, 200] {
            let all = devices(2, good);
            let llama = on(&all, &dir, &options(None)).unwrap();
            run(&llama, &prompt(5, 1), going_on(2));
            all[rank].break_after(good);
            let fails = || {
                let prompts = vec![Prompt::Tokens(prompt(20, 2))];
                llama.generate(prompts, going_on(9), &mut |_| true)
            };
            let error = fails().map(drop).unwrap_err();
            let text = error.to_string();
            assert_eq!(status_of(&error), LLAMA_E_DEVICE, "{text}");
            assert!(text.contains(&format!("rank {rank}: ")), "{text}");
            assert!(text.contains("a planted failure"), "{text}");
            let again = fails().map(drop).unwrap_err();
            assert_eq!(status_of(&again), LLAMA_E_POISONED, "{again}");
            assert!(llama.health().is_err());
            drop(llama);
            all.iter().for_each(|device| assert_returned(device));
        }
    }
}

/// A rank whose device is silent for too long is named, too.
#[test]
fn a_rank_that_is_silent_is_named() {
    if real() {
        return println!("only on emulated devices");
    }
    let all = devices(2, 3);
    let options = BuildOptions {
        rank_timeout_ms: 300,
        ..options(None)
    };
    let llama = on(&all, &reference("gqa-bf16/meta"), &options).unwrap();
    run(&llama, &prompt(5, 1), going_on(2));
    all[1].stall(Duration::from_secs(3));
    let prompts = vec![Prompt::Tokens(prompt(20, 2))];
    let failed = llama.generate(prompts, going_on(9), &mut |_| true);
    let error = failed.map(drop).unwrap_err();
    assert_eq!(status_of(&error), LLAMA_E_PEER, "{error}");
    let text = error.to_string();
    assert!(text.contains("rank 1 of 2 has not been heard of"), "{text}");
    drop(llama);
    all.iter().for_each(|device| assert_returned(device));
}

/// A call may be given up, and the handle dropped, while ranks are in a step.
#[test]
fn ranks_end_when_they_are_told() {
    if real() {
        return println!("only on emulated devices");
    }
    let all = devices(2, 4);
    let dir = reference("gqa-bf16/meta");
    let llama = on(&all, &dir, &options(None)).unwrap();
    let want = run(&llama, &prompt(9, 1), going_on(5));
    for _ in 0..3 {
        let stream = start(&llama, &prompt(30, 6), going_on(30));
        assert!(matches!(stream.next(None), Ok(Next::Event(_))));
        drop(stream);
        // The next call finds all ranks at the same step.
        let got = run(&llama, &prompt(9, 1), going_on(5));
        assert_eq!(bits(&got), bits(&want));
    }
    let stream = start(&llama, &prompt(30, 6), going_on(30));
    assert!(matches!(stream.next(None), Ok(Next::Event(_))));
    drop(llama);
    drop(stream);
    all.iter().for_each(|device| assert_returned(device));

    // Loading stops for the caller and for the flag.
    let mut options = options(None);
    options.devices = vec![0, 1];
    let stopped = Llama::build_on_ranks(all.clone(), &dir, None, &options, &mut |_| false);
    assert!(matches!(stopped.err(), Some(Error::Cancelled)));
    let cancel = Cancel::new();
    cancel.trigger();
    options.cancel = Some(cancel);
    let stopped = Llama::build_on_ranks(all.clone(), &dir, None, &options, &mut |_| true);
    assert!(matches!(stopped.err(), Some(Error::Cancelled)));
    all.iter().for_each(|device| assert_returned(device));
}

/// What ranks do not have is refused when the model is built, or when it is asked for.
#[test]
fn what_ranks_do_not_have_is_refused() {
    if real() {
        return println!("only on emulated devices");
    }
    let dir = reference("gqa-bf16/meta");
    let with = |set: &dyn Fn(&mut BuildOptions)| {
        let mut options = options(None);
        set(&mut options);
        on(&devices(2, 1), &dir, &options)
            .err()
            .unwrap()
            .to_string()
    };
    let draft = with(&|options| options.draft_dir = Some(reference("mha-f32/meta")));
    assert!(draft.contains("has no draft model"), "{draft}");
    let medusa = with(&|options| options.medusa_dir = Some(PathBuf::from("heads")));
    assert!(medusa.contains("has no Medusa heads"), "{medusa}");
    let heads = on(&devices(4, 1), &dir, &options(None));
    let heads = heads.err().unwrap().to_string();
    assert!(
        heads.contains("6 heads cannot be shared among 4"),
        "{heads}"
    );
}
