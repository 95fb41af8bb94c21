//! `pytorch_model.bin`, alone or as shards with an index: the weights of safetensors, in the form
//! that transformers wrote before it. What the archive and its pickle may say is tested in `files`.

use crate::checkpoints::collect::{Collect, Mat};
use crate::checkpoints::write::{Pickled, Tensor, ZipEntry, pickle, pth, pth_entries, zip};
use crate::checkpoints::{Opened, TempDir, reference, sentence};
use llamabi::Dtype;
use llamabi::backend::Weights;
use llamabi::checkpoint::weights::{self, LoadControl};
use llamabi::checkpoint::{Adapter, Plan};
use safetensors::SafeTensors;
use std::path::Path;

const CONFIG: &str = "config.json";
const SINGLE: &str = "pytorch_model.bin";
const INDEX: &str = "pytorch_model.bin.index.json";
const MODELS: [&str; 3] = ["mha-f32", "gqa-bf16", "gqa-f16-mp2"];

/// The tensors of a reference model, and its configuration in `dir`.
fn tensors(name: &str, dir: &TempDir) -> Vec<Tensor> {
    let of = reference(name).join("hf");
    std::fs::copy(of.join(CONFIG), dir.path().join(CONFIG)).unwrap();
    stored(&of.join("model.safetensors"))
}

/// The tensors of a safetensors file.
fn stored(path: &Path) -> Vec<Tensor> {
    let bytes = std::fs::read(path).unwrap();
    let file = SafeTensors::deserialize(&bytes).unwrap();
    let tensor = |(name, view): (String, safetensors::tensor::TensorView<'_>)| Tensor {
        name,
        dtype: match view.dtype() {
            safetensors::Dtype::F32 => "F32",
            safetensors::Dtype::F16 => "F16",
            safetensors::Dtype::BF16 => "BF16",
            other => panic!("{other:?}"),
        },
        shape: view.shape().to_vec(),
        bytes: view.data().to_vec(),
    };
    file.tensors().into_iter().map(tensor).collect()
}

/// The tensors in `n` shards, beside their index.
fn write_shards(dir: &TempDir, tensors: &[Tensor], n: usize) {
    let mut map = serde_json::Map::new();
    for (i, shard) in tensors.chunks(tensors.len().div_ceil(n)).enumerate() {
        let name = format!("pytorch_model-{:05}-of-{n:05}.bin", i + 1);
        dir.file(&name, pth(shard));
        map.extend(shard.iter().map(|t| (t.name.clone(), name.clone().into())));
    }
    let index = serde_json::json!({"metadata": {"total_size": 1}, "weight_map": map});
    dir.file(INDEX, index.to_string());
}

fn load(dir: &Path) -> llamabi::Result<Weights<Collect>> {
    let mut control = LoadControl {
        cancel: None,
        progress: &mut |_| true,
    };
    Opened::new(dir, 512)?.load(&Collect::default(), Some(Dtype::F32), &mut control)
}

fn assert_same(a: &Weights<Collect>, b: &Weights<Collect>, what: &str) {
    let matrices = |w: &Weights<Collect>| -> Vec<Mat> {
        let layers = w
            .layers
            .iter()
            .flat_map(|l| [&l.wqkv, &l.wo, &l.w13, &l.w2]);
        let others = [&w.embedding].into_iter().chain(&w.head);
        others.chain(layers).cloned().collect()
    };
    let norms = |w: &Weights<Collect>| -> Vec<Vec<f32>> {
        let layers = w
            .layers
            .iter()
            .flat_map(|l| [&l.attention_norm, &l.ffn_norm]);
        layers.chain([&w.norm]).cloned().collect()
    };
    assert_eq!(norms(a), norms(b), "{what}");
    assert!(matrices(a) == matrices(b), "{what}");
    let all = matrices(a);
    assert!(
        all.iter().all(|mat| mat.values.iter().all(|x| !x.is_nan())),
        "{what}"
    );
}

#[test]
fn one_file_and_shards_are_the_same_model_as_safetensors() {
    for name in MODELS {
        let want = load(&reference(name).join("hf")).unwrap();
        let dir = TempDir::new();
        let tensors = tensors(name, &dir);
        write_shards(&dir, &tensors, 3);
        assert_same(&load(dir.path()).unwrap(), &want, name);
        // A single file goes before an index, which may be of no use then.
        dir.file(INDEX, "{");
        dir.file(SINGLE, pth(&tensors));
        assert_same(&load(dir.path()).unwrap(), &want, name);
        // Safetensors go before either.
        dir.file(SINGLE, "");
        let safetensors = reference(name).join("hf/model.safetensors");
        std::fs::copy(safetensors, dir.path().join("model.safetensors")).unwrap();
        assert_same(&load(dir.path()).unwrap(), &want, name);
    }
}

/// An adapter of older peft, whose matrices are in `adapter_model.bin`.
#[test]
fn adapters_may_be_pickled() {
    let of = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/adapters");
    let base = Opened::new(&of.join("base"), 0).unwrap();
    let (safe, bin, config) = (
        "adapter_model.safetensors",
        "adapter_model.bin",
        "adapter_config.json",
    );
    let merged = |dir: &Path| -> llamabi::Result<_> {
        let adapters = [Adapter::open(dir, 1.0, None)?];
        let (checkpoint, asked) = (&*base.checkpoint, Some(Dtype::F32));
        let plan = Plan::new::<Collect>(checkpoint, &base.files, &base.config, asked, &adapters)?;
        let mut control = LoadControl {
            cancel: None,
            progress: &mut |_| true,
        };
        weights::load(&Collect::default(), &plan, &mut control)
    };
    for name in ["plain", "rslora-patterns", "with-head"] {
        let (of, dir) = (of.join(name), TempDir::new());
        std::fs::copy(of.join(config), dir.path().join(config)).unwrap();
        dir.file(bin, pth(&stored(&of.join(safe))));
        let want = merged(&of).unwrap();
        assert_same(&merged(dir.path()).unwrap(), &want, name);
        // Safetensors go before it.
        dir.file(bin, "");
        std::fs::copy(of.join(safe), dir.path().join(safe)).unwrap();
        assert_same(&merged(dir.path()).unwrap(), &want, name);
        std::fs::remove_file(dir.path().join(safe)).unwrap();
        let text = sentence(merged(dir.path()), dir.path());
        assert!(text.starts_with(bin), "{text}");
    }
}

/// All tensors as slices of one storage, as `torch.save` of views leaves them.
#[test]
fn tensors_may_share_a_storage() {
    let dir = TempDir::new();
    let tensors = tensors("mha-f32", &dir);
    let (mut pickled, mut storage) = (Vec::new(), Vec::new());
    for tensor in &tensors {
        let offset = (storage.len() / 4) as i32;
        storage.extend(&tensor.bytes);
        pickled.push(Pickled {
            offset,
            ..Pickled::new(tensor, 0)
        });
    }
    let numel = (storage.len() / 4) as i32;
    pickled.iter_mut().for_each(|tensor| tensor.numel = numel);
    dir.file(SINGLE, zip(&pth_entries(pickle(&pickled), &[storage])));
    let want = load(&reference("mha-f32").join("hf")).unwrap();
    assert_same(&load(dir.path()).unwrap(), &want, "shared");
}

#[test]
fn an_index_and_its_shards_must_agree() {
    let dir = TempDir::new();
    let tensors = tensors("mha-f32", &dir);
    let refused = |what: &str| {
        let found = sentence(load(dir.path()), dir.path());
        assert!(found.starts_with(what), "{found}\n{what}");
    };
    let second = "pytorch_model-00002-of-00002.bin";
    write_shards(&dir, &tensors, 2);
    std::fs::remove_file(dir.path().join(second)).unwrap();
    refused(&format!("{second}: No such file"));

    let half = tensors.len().div_ceil(2);
    dir.file(second, pth(&tensors[half + 1..]));
    let left_out = &tensors[half].name;
    refused(&format!(
        "{second}: tensor `{left_out}`: expected it here, as {INDEX} says, found no such tensor"
    ));
    dir.file(second, pth(&tensors[half - 1..]));
    let twice = &tensors[half - 1].name;
    refused(&format!(
        "{second}: tensor `{twice}`: expected it in `pytorch_model-00001-of-00002.bin` only"
    ));

    for (weight_map, expected) in [
        (r#"{}"#, "the weight_map is empty"),
        (
            r#"{"a": "../model.bin"}"#,
            "the weight_map names `../model.bin`, expected a .bin file beside it",
        ),
        (
            r#"{"a": "model.safetensors"}"#,
            "the weight_map names `model.safetensors`, expected a .bin file",
        ),
        (r#"{"a": 1}"#, "not a PyTorch index"),
    ] {
        dir.file(INDEX, format!(r#"{{"weight_map": {weight_map}}}"#));
        refused(&format!("{INDEX}: {expected}"));
    }
}

/// A pickle is a program. Nothing of it is run but what makes a dict of tensors, whichever file it
/// lies in.
#[test]
fn a_hostile_pickle_is_refused_and_not_run() {
    let dir = TempDir::new();
    let tensors = tensors("mha-f32", &dir);
    write_shards(&dir, &tensors, 2);
    let proof = dir.path().join("proof");
    let command = format!("touch {}", proof.display());
    let call = |module: &str| {
        let mut out = format!("\x02c{module}\nX").into_bytes();
        out.insert(0, 0x80);
        out.extend((command.len() as u32).to_le_bytes());
        out.extend([command.as_bytes(), b"\x85R."].concat());
        out
    };
    let expected = "is not one of the functions a dict of tensors needs; nothing is run";
    for module in [
        "posix\nsystem",
        "os\nsystem",
        "builtins\nexec",
        "subprocess\nPopen",
    ] {
        let file = zip(&pth_entries(call(module), &[]));
        let name = module.replace('\n', ".");
        for shard in ["pytorch_model-00001-of-00002.bin", SINGLE] {
            dir.file(shard, &file);
            let found = sentence(load(dir.path()), dir.path());
            let want = format!("{shard}: archive/data.pkl: at byte 2: `{name}` {expected}");
            assert_eq!(found, want);
        }
        std::fs::remove_file(dir.path().join(SINGLE)).unwrap();
        assert!(!proof.exists());
    }
}

#[test]
fn broken_files_are_refused() {
    let dir = TempDir::new();
    let mut tensors = tensors("mha-f32", &dir);
    // A matrix first, whose strides can be wrong.
    tensors.sort_by_key(|tensor| std::cmp::Reverse(tensor.shape.len()));
    let refused = |bytes: &[u8], expected: &str| {
        dir.file(SINGLE, bytes);
        let found = sentence(load(dir.path()), dir.path());
        assert!(
            found.starts_with(&format!("{SINGLE}: {expected}")),
            "{found}\n{expected}"
        );
    };
    let whole = pth(&tensors);
    refused(b"", "not a .pth in the zip form");
    refused(b"\x80\x02}.", "a .pth in the legacy form (bare pickle)");
    for len in [4, 100, whole.len() / 2, whole.len() - 1] {
        dir.file(SINGLE, &whole[..len]);
        let found = sentence(load(dir.path()), dir.path());
        assert!(found.starts_with(&format!("{SINGLE}: ")), "{found}");
    }
    let first = &tensors[0];
    // More tensors than there are is as wrong as fewer.
    let more = Tensor::f32("model.layers.9.extra", &[2], 0);
    let surplus: Vec<Tensor> = tensors.iter().cloned().chain([more]).collect();
    refused(
        &pth(&surplus),
        "tensor `model.layers.9.extra`: expected no such tensor in this model",
    );
    dir.file(SINGLE, pth(&tensors[1..]));
    let found = sentence(load(dir.path()), dir.path());
    assert!(
        found.contains(&format!("tensor `{}`", first.name)) && found.contains("no such tensor"),
        "{found}"
    );

    // A tensor that would be read beyond its storage, by its size, its offset or its strides.
    let lie = |change: &dyn Fn(&mut Pickled)| {
        let mut pickled: Vec<_> = tensors
            .iter()
            .enumerate()
            .map(|(i, t)| Pickled::new(t, i))
            .collect();
        change(&mut pickled[0]);
        let storages: Vec<_> = tensors.iter().map(|t| t.bytes.clone()).collect();
        zip(&pth_entries(pickle(&pickled), &storages))
    };
    let n = first.shape.iter().product::<usize>() as i32;
    let of = format!("tensor `{}`: expected ", first.name);
    for (change, expected) in [
        (
            &|t: &mut Pickled| t.numel += 1,
            format!("a storage of {} f32 elements", n + 1),
        ),
        (
            &|t: &mut Pickled| t.offset = 1,
            format!("to lie inside its storage of {n} elements"),
        ),
        (
            &|t: &mut Pickled| t.offset = i32::MAX,
            format!("to lie inside its storage of {n} elements"),
        ),
        (
            &|t: &mut Pickled| t.shape[0] += 1,
            format!("to lie inside its storage of {n} elements"),
        ),
        (
            &|t: &mut Pickled| t.strides.reverse(),
            "row-major contiguous elements".into(),
        ),
        (
            &|t: &mut Pickled| t.class = "LongStorage",
            "FloatStorage, HalfStorage or BFloat16Storage".into(),
        ),
        (
            &|t: &mut Pickled| t.key = "99".into(),
            "its data in zip entry `archive/data/99`".into(),
        ),
    ] as [(&dyn Fn(&mut Pickled), String); 7]
    {
        refused(&lie(change), &format!("{of}{expected}"));
    }
    let mut entries = pth_entries(
        pickle(&[Pickled::new(first, 0)]),
        std::slice::from_ref(&first.bytes),
    );
    entries.push(ZipEntry::new("other/data.pkl", "N."));
    refused(&zip(&entries), "the zip has more than one data.pkl");
}
