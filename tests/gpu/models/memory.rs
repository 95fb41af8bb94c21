//! Memory, failures, and which device it is.

use super::*;

fn on(device: &Arc<Emu>, options: &BuildOptions) -> Result<Llama> {
    let dir = reference("gqa-bf16/meta");
    Llama::build_on(device.clone(), &dir, None, options, &mut |_| true)
}

/// Waits until the engine's thread has released everything.
#[track_caller]
pub(super) fn assert_returned(device: &Emu) {
    let start = Instant::now();
    while device.allocated().0 > 0 {
        let left = device.allocated().0;
        assert!(
            start.elapsed() < Duration::from_secs(300),
            "{left} bytes were never given back"
        );
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn memory_that_is_not_there_is_said_with_the_plan() {
    if real() {
        return println!("only on the emulated device");
    }
    for (memory, limit) in [(4096, 0), (GIB, 4096)] {
        let device = Emu::new(memory, 1);
        let mut options = options(None);
        options.gpu_memory_bytes = limit;
        let error = on(&device, &options)
            .err()
            .expect("4096 bytes are not enough");
        assert_eq!(status_of(&error), LLAMA_E_DEVICE_MEMORY);
        let text = error.to_string();
        for part in [
            "the weights ",
            "the KV pool",
            "scratch buffers",
            "4096 bytes are available",
        ] {
            assert!(text.contains(part), "{text}");
        }
        assert_eq!(device.allocated(), (0, 0), "planned, not tried");
    }
}

/// What the plan asks for is enough, a byte less is not, and never is more taken.
#[test]
fn the_limit_is_a_limit() {
    if real() {
        return println!("only on the emulated device");
    }
    let mut options = options(None);
    options.gpu_memory_bytes = 1;
    let Some(Error::DeviceMemory { needed, .. }) = on(&Emu::new(GIB, 1), &options).err() else {
        panic!("one byte is not enough");
    };
    options.gpu_memory_bytes = needed - 1;
    assert!(on(&Emu::new(GIB, 1), &options).is_err());
    options.gpu_memory_bytes = needed;
    let device = Emu::new(GIB, 1);
    let llama = on(&device, &options).unwrap();
    let built = device.allocated().1;
    assert!(built <= needed, "{built} bytes of {needed} allowed");
    // The number belongs to this model; it is not just any large number.
    assert!(
        built > needed - needed / 8,
        "{built} bytes of {needed} planned"
    );
    for n in [5, 60] {
        run(&llama, &prompt(n, 1), going_on(4));
    }
    assert_eq!(device.allocated(), (built, built), "nothing later");
    drop(llama);
    assert_returned(&device);
}

/// Other processes took memory after it was counted, or the device breaks: nothing is left behind.
#[test]
fn builds_that_fail_half_way_leave_nothing() {
    if real() {
        return println!("only on the emulated device");
    }
    let device = Emu::new(GIB, 1);
    drop(on(&device, &options(None)).unwrap());
    let whole = device.allocated().1;
    for eighth in 0..8 {
        let device = Emu::with_promise(whole * eighth / 8, GIB, 1);
        let error = on(&device, &options(None))
            .err()
            .expect("too little memory");
        assert_eq!(status_of(&error), LLAMA_E_DEVICE_MEMORY);
        assert!(error.to_string().contains("the KV pool"), "{error}");
        assert_returned(&device);
    }
    for n in [0, 1, 7, 20] {
        let device = Emu::new(GIB, 1);
        device.break_after(n);
        let error = on(&device, &options(None)).err().expect("a broken device");
        assert_eq!(status_of(&error), LLAMA_E_DEVICE, "{error}");
        assert_returned(&device);
    }
}

/// A failure of a copy or launch at any point of a step ends the handle and nothing else.
#[test]
fn a_device_error_poisons_the_handle() {
    if real() {
        return println!("only on the emulated device");
    }
    let healthy = Emu::new(GIB, 1);
    let other = on(&healthy, &options(None)).unwrap();
    let want = run(&other, &prompt(9, 1), going_on(3));
    for n in [0, 1, 2, 9, 17, 18, 40] {
        let device = Emu::new(GIB, 1);
        let model = Model::from(on(&device, &options(None)).unwrap());
        let call = || model.generate(&[prompt(5, 1), prompt(20, 2)], &greedy(30));
        device.break_after(n);
        let (status, text) = call().unwrap_err();
        assert_eq!(status, LLAMA_E_DEVICE, "{n}: {text}");
        assert!(text.contains("a planted failure"), "{text}");
        let (status, text) = call().unwrap_err();
        assert_eq!(status, LLAMA_E_POISONED, "{n}: {text}");
        assert!(text.contains("a planted failure"), "{text}");
        // The engine's thread ends, and frees all that was on the device, while the handle lives.
        assert_returned(&device);
        assert_eq!(model.timings().pages_used, 0);
        drop(model);
        assert_eq!(run(&other, &prompt(9, 1), going_on(3)), want);
    }
}

/// CUDA says why there is no GPU; AUTO says it too and uses the CPU.
#[test]
fn auto_takes_what_there_is() {
    let log = Arc::new(Log::new(Some(Level::Info)));
    let open = |device| {
        let options = BuildOptions {
            device,
            log: log.clone(),
            ..options(None)
        };
        Llama::build(&reference("mha-f32/meta"), None, &options, &mut |_| true)
    };
    let lines = || {
        let mut lines = Vec::new();
        log.drain(|_, line| lines.push(line.to_owned()));
        lines
    };
    match open(Device::Cuda) {
        Ok(_) => {
            lines();
            assert_eq!(open(Device::Auto).unwrap().info().device, Device::Cuda);
            assert!(!lines().iter().any(|line| line.starts_with("device AUTO")));
        }
        Err(error) => {
            assert!(!real(), "{error}");
            assert_eq!(status_of(&error), LLAMA_E_UNSUPPORTED);
            let text = error.to_string();
            let reason = text.strip_prefix("device is CUDA: ").expect(&text);
            lines();
            let llama = open(Device::Auto).unwrap();
            assert_eq!(llama.info().device, Device::Cpu);
            let said = format!("device AUTO: {reason}; running on the CPU");
            assert_eq!(lines().iter().filter(|line| **line == said).count(), 1);
            assert_eq!(run(&llama, &prompt(5, 1), going_on(3)).len(), 3);
        }
    }
}
