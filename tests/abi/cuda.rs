//! The shared library with a driver in the library path: one that stands in for NVIDIA's and runs
//! the kernels on the CPU (`kernels/emu/cuda`). What `tests/gpu/cuda.rs` cannot see: which driver
//! is opened, and when.

use super::{compile, link_dir, root, succeed};
use crate::emu::{build, standin};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

const AUTO: i32 = 0;
const CPU: i32 = 1;
const CUDA: i32 = 2;

const MODEL: &str = "tests/data/reference/mha-f32/meta";

/// The program, and a folder with the stand-in and one with kernels for it.
fn program() -> &'static (PathBuf, PathBuf, PathBuf) {
    static PROGRAM: OnceLock<(PathBuf, PathBuf, PathBuf)> = OnceLock::new();
    PROGRAM.get_or_init(|| {
        let driver = build::driver().parent().unwrap().to_owned();
        let kernels = link_dir().join("kernels");
        standin::kernel_folder(&kernels);
        let program = compile("cc", "cuda.c", "cuda", &["-std=c11", "-O1"]);
        (program, driver, kernels)
    })
}

/// Its lines. `driver`: the folder of a driver.
fn run_with(
    driver: &Path,
    model: &Path,
    device: i32,
    arguments: &[&str],
    settings: &str,
) -> Vec<String> {
    let (program, _, kernels) = program();
    let _share = build::Share::new();
    let mut command = Command::new("timeout");
    command.args(["-k", "10", "1800", "env"]);
    // `succeed` takes the path out of the environment: cargo's has folders of its own.
    command.arg(format!("LD_LIBRARY_PATH={}", driver.display()));
    command.arg(program).arg(model).arg(device.to_string());
    command.args(arguments);
    command.env("EMU_CUDA", settings);
    command.env("LLAMABI_KERNELS", kernels);
    succeed(&mut command).lines().map(String::from).collect()
}

fn run(device: i32, arguments: &[&str], settings: &str) -> Vec<String> {
    let (_, driver, _) = program();
    run_with(driver, &root().join(MODEL), device, arguments, settings)
}

fn line<'a>(lines: &'a [String], start: &str) -> &'a str {
    let found = lines.iter().find_map(|line| line.strip_prefix(start));
    found.unwrap_or_else(|| panic!("no {start:?} in {lines:#?}"))
}

fn tokens(lines: &[String]) -> Vec<&String> {
    let found: Vec<_> = lines.iter().filter(|l| l.starts_with("tokens:")).collect();
    assert_eq!(found.len() % 3, 0);
    assert!(!found.is_empty(), "{lines:#?}");
    found
}

fn assert_clean(lines: &[String]) {
    let report = line(lines, "driver: ");
    assert!(report.starts_with("0 0 contexts"), "{report}");
}

#[test]
fn the_gpu_gives_the_tokens_of_the_cpu() {
    let cpu = run(CPU, &[], "");
    assert!(line(&cpu, "device: ").starts_with("1 "));
    // Not even looked for.
    assert_eq!(line(&cpu, "driver: "), "not opened");
    for (device, settings) in [(CUDA, "seed=3"), (AUTO, "arch=80")] {
        let gpu = run(device, &[], settings);
        let name = line(&gpu, "device: 2 ");
        assert!(
            name.starts_with("Emulated GPU 0, compute capability "),
            "{name}"
        );
        assert_eq!(tokens(&gpu), tokens(&cpu));
        assert_clean(&gpu);
    }
    let second = run(CUDA, &["index=1"], "devices=2");
    assert!(line(&second, "device: 2 ").starts_with("Emulated GPU 1"));
}

/// Ranks in processes of their own, each with a GPU: with NCCL, and through the hosts' memory.
#[test]
fn ranks_on_gpus() {
    let (_, driver, kernels) = program();
    let ranks = compile("cc", "ranks.c", "ranks-on-gpus", &["-std=c11", "-O1"]);
    for nccl in [driver.join("libcuda.so.1"), "/no/libnccl.so".into()] {
        let _share = build::Share::new();
        let mut command = Command::new("timeout");
        command.args(["-k", "10", "1800", "env"]);
        command.arg(format!("LD_LIBRARY_PATH={}", driver.display()));
        command.arg(&ranks).arg(root().join(MODEL));
        command.env("EMU_CUDA", "devices=4");
        command.env("LLAMABI_KERNELS", kernels);
        command.env("LLAMABI_NCCL", nccl);
        command.env("RANKS_ON_GPUS", "1");
        print!("{}", succeed(&mut command));
    }
}

#[test]
fn no_usable_gpu() {
    for (settings, reason) in [
        ("devices=0", "the NVIDIA driver finds no GPU"),
        (
            "driver=12080",
            "the NVIDIA driver is too old: it offers CUDA 12.8, this build needs CUDA 13.0",
        ),
        (
            "arch=75",
            "Emulated GPU 0 has compute capability 7.5, this build has kernels for 8.0 and newer",
        ),
        (
            "fail=cuInit:1:34",
            "libcuda.so.1 is not a driver: cuInit says that it is a stub",
        ),
    ] {
        let cuda = run(CUDA, &[], settings);
        let build = line(&cuda, "build: ");
        assert_eq!(build, format!("-5 device is CUDA: {reason}"));
        assert_clean(&cuda);
        let auto = run(AUTO, &[], settings);
        assert!(line(&auto, "device: ").starts_with("1 "));
        let log = line(&auto, "log 3: device AUTO: ");
        assert_eq!(log, format!("{reason}; running on the CPU"));
        assert_clean(&auto);
    }
    let error = run(CUDA, &["index=1"], "");
    let error = line(&error, "build: ");
    assert_eq!(
        error,
        "-1 device_index is 1, must be less than 1, the GPUs there are"
    );
}

/// A driver that lacks a function is one that this library does not call.
#[test]
fn a_driver_without_a_function() {
    let dir = link_dir().join("old-driver");
    fs::create_dir_all(&dir).unwrap();
    let source = dir.join("old.c");
    fs::write(&source, "int cuInit(unsigned flags) { return 0; }\n").unwrap();
    let mut cc = Command::new("cc");
    cc.args(["-shared", "-fPIC", "-o"]);
    succeed(cc.arg(dir.join("libcuda.so.1")).arg(&source));
    let model = root().join(MODEL);
    let reason = "libcuda.so.1 is not a driver: it has no cuDriverGetVersion";
    let cuda = run_with(&dir, &model, CUDA, &[], "");
    assert_eq!(
        line(&cuda, "build: "),
        format!("-5 device is CUDA: {reason}")
    );
    let auto = run_with(&dir, &model, AUTO, &[], "");
    assert!(line(&auto, "log 3: ").contains(reason));
    tokens(&auto);
}

/// Where a GPU is usable and the model is not one for it, AUTO takes the CPU.
#[test]
fn a_model_that_the_kernels_do_not_run() {
    let dir = wide_heads();
    let (_, driver, _) = program();
    let reason = "head_dim is 512, the GPU kernels take even ones up to 256";
    let cuda = run_with(driver, &dir, CUDA, &[], "");
    assert_eq!(line(&cuda, "build: "), format!("-5 {reason}"));
    assert_clean(&cuda);
    let auto = run_with(driver, &dir, AUTO, &[], "");
    assert!(line(&auto, "device: ").starts_with("1 "));
    let log = line(&auto, "log 3: device AUTO: ");
    assert_eq!(log, format!("{reason}; running on the CPU"));
    assert_eq!(tokens(&auto).len(), 3);
    assert_clean(&auto);
}

/// A model of one layer and one head of 512, in Hugging Face's form.
fn wide_heads() -> PathBuf {
    let dir = link_dir().join("wide-heads");
    fs::create_dir_all(&dir).unwrap();
    let config = r#"{"model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 32,
        "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 1, "num_key_value_heads": 1,
        "head_dim": 512, "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "vocab_size": 512,
        "max_position_embeddings": 64, "hidden_act": "silu", "tie_word_embeddings": true,
        "bos_token_id": 1, "eos_token_id": 2}"#;
    fs::write(dir.join("config.json"), config).unwrap();
    let tokenizer = "tests/data/reference/mha-f32/meta/tokenizer.model";
    fs::copy(root().join(tokenizer), dir.join("tokenizer.model")).unwrap();
    let (mut header, mut data) = (String::from("{"), Vec::new());
    for (name, shape) in [
        ("embed_tokens", &[512, 32][..]),
        ("norm", &[32]),
        ("layers.0.input_layernorm", &[32]),
        ("layers.0.post_attention_layernorm", &[32]),
        ("layers.0.self_attn.q_proj", &[512, 32]),
        ("layers.0.self_attn.k_proj", &[512, 32]),
        ("layers.0.self_attn.v_proj", &[512, 32]),
        ("layers.0.self_attn.o_proj", &[32, 512]),
        ("layers.0.mlp.gate_proj", &[32, 32]),
        ("layers.0.mlp.up_proj", &[32, 32]),
        ("layers.0.mlp.down_proj", &[32, 32]),
    ] {
        let (from, n) = (data.len(), shape.iter().product::<usize>());
        for i in 0..n {
            let value = ((i * 7919 + from) % 1000) as f32 / 1000.0 - 0.5;
            data.extend(value.to_le_bytes());
        }
        let separator = if from == 0 { "" } else { "," };
        header += &format!(
            "{separator}\"model.{name}.weight\":{{\"dtype\":\"F32\",\"shape\":{shape:?},\"data_offsets\":[{from},{}]}}",
            data.len()
        );
    }
    header += "}";
    let mut file = (header.len() as u64).to_le_bytes().to_vec();
    file.extend(header.as_bytes());
    file.extend(data);
    fs::write(dir.join("model.safetensors"), file).unwrap();
    dir
}

#[test]
fn memory_has_limits() {
    for (arguments, settings, available) in [
        (&["memory=100000"][..], "", 100_000),
        (&[], "memory=50000", 50_000),
        (&["memory=100000"], "memory=50000", 50_000),
    ] {
        let lines = run(CUDA, arguments, settings);
        let build = line(&lines, "build: ");
        assert!(build.starts_with("-8 "), "{build}");
        let end = format!("bytes of GPU memory, {available} bytes are available");
        assert!(build.ends_with(&end), "{build}");
        assert!(build.contains("the KV pool"), "{build}");
        assert_clean(&lines);
    }
}

/// The handle is of no more use, all of its memory comes back, and the process goes on.
#[test]
fn a_device_that_fails() {
    let cpu = run(CPU, &[], "");
    let lines = run(CUDA, &["late=fail=work:20:719"], "");
    let outcomes: Vec<_> = lines
        .iter()
        .filter_map(|l| l.strip_prefix("generate: "))
        .collect();
    assert_eq!(outcomes[0], "0 ");
    assert_eq!(
        outcomes[1],
        "-7 cuEventSynchronize: CUDA_ERROR_LAUNCH_FAILED (719)"
    );
    assert!(outcomes[2].starts_with("-13 "), "{outcomes:?}");
    assert_eq!(outcomes[3], "0 ");
    let twice = [tokens(&cpu), tokens(&cpu)].concat();
    assert_eq!(tokens(&lines), twice);
    assert_clean(&lines);
}

/// Kernels that are not those of this library's build are refused in words.
#[test]
fn other_kernels() {
    let (_, driver, kernels) = program();
    let dir = link_dir().join("other-kernels");
    let _ = fs::remove_dir_all(&dir);
    let run = |dir: &Path| {
        let mut command = Command::new("env");
        command.arg(format!("LD_LIBRARY_PATH={}", driver.display()));
        command
            .arg(&program().0)
            .arg(root().join(MODEL))
            .arg(CUDA.to_string());
        let out = succeed(command.env("LLAMABI_KERNELS", dir));
        let lines: Vec<String> = out.lines().map(String::from).collect();
        assert_eq!(line(&lines, "driver: "), "not opened");
        let build = line(
            &lines,
            "build: -5 device is CUDA: the GPU kernels cannot be used: LLAMABI_KERNELS: ",
        );
        build.replace(&dir.display().to_string(), "DIR")
    };
    assert_eq!(
        run(&dir),
        "DIR/params.h: No such file or directory (os error 2)"
    );
    fs::create_dir_all(&dir).unwrap();
    fs::write(dir.join("params.h"), "// of last week").unwrap();
    assert_eq!(
        run(&dir),
        "DIR/params.h: not the one that this library was built from"
    );
    fs::copy(kernels.join("params.h"), dir.join("params.h")).unwrap();
    fs::write(dir.join("driver"), "new").unwrap();
    assert_eq!(run(&dir), "DIR/driver: not a number");
    fs::write(dir.join("driver"), "13000").unwrap();
    assert_eq!(run(&dir), "DIR: there is no .fatbin");
}
