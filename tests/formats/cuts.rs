//! What the ranks of a model load is the whole model's, cut: byte for byte, in every form and
//! format.

use crate::checkpoints::collect::{Collect, Mat};
use crate::checkpoints::{Opened, reference};
use llamabi::backend::Weights;
use llamabi::checkpoint::Plan;
use llamabi::checkpoint::weights::{LoadControl, load};
use llamabi::model::Cuts;
use llamabi::model::matrices::{EMBEDDING, HEAD, LAYER, Matrix, Width};
use llamabi::{Dtype, Error, Result};
use std::ops::Range;
use std::path::{Path, PathBuf};

const FORMATS: [Option<Dtype>; 6] = [
    None,
    Some(Dtype::F32),
    Some(Dtype::Bf16),
    Some(Dtype::Int8),
    Some(Dtype::Int4),
    Some(Dtype::Nf4),
];

fn plan(opened: &Opened, asked: Option<Dtype>) -> Result<Plan<'_>> {
    let checkpoint = &*opened.checkpoint;
    Plan::new::<Collect>(checkpoint, &opened.files, &opened.config, asked, &[])
}

fn weights(plan: &Plan<'_>) -> Weights<Collect> {
    let mut last = 0.0;
    let mut control = LoadControl {
        cancel: None,
        progress: &mut |share| {
            last = share;
            true
        },
    };
    let weights = load(&Collect::default(), plan, &mut control).unwrap();
    assert_eq!(last, 1.0, "all that was planned was read");
    weights
}

/// All matrices with their description.
fn matrices(w: &Weights<Collect>) -> Vec<(&Mat, &'static Matrix)> {
    let mut all = vec![(&w.embedding, &EMBEDDING)];
    for l in &w.layers {
        all.extend([&l.wqkv, &l.wo, &l.w13, &l.w2].into_iter().zip(&LAYER));
    }
    all.extend(w.head.as_ref().map(|head| (head, &HEAD)));
    all
}

fn bits(x: &[f32]) -> Vec<u32> {
    x.iter().map(|x| x.to_bits()).collect()
}

fn cut<T: Copy>(from: &[T], rows: Range<usize>, cols: Range<usize>, width: usize) -> Vec<T> {
    let rows = from
        .chunks_exact(width.max(1))
        .skip(rows.start)
        .take(rows.len());
    rows.flat_map(|row| row[cols.clone()].to_vec()).collect()
}

/// Compares what a rank has with what the whole has there.
fn assert_cut(own: &Mat, whole: &Mat, matrix: &Matrix, cuts: &Cuts, rank: usize, what: &str) {
    let cols = cuts.cols(matrix, rank);
    assert_eq!(
        (own.cols, &own.dtypes),
        (cols.len(), &whole.dtypes),
        "{what}"
    );
    let adds_bias = rank == 0 || matrix.cols == Width::Dim;
    let mut bias = Vec::new();
    let mut first = 0;
    for (index, &part) in matrix.parts.iter().enumerate() {
        let rows = cuts.rows(part, rank);
        assert_eq!(own.parts[index], rows.len(), "{what}");
        if !whole.bias.is_empty() && adds_bias {
            bias.extend_from_slice(&whole.bias[first..][rows.clone()]);
        }
        first += whole.parts[index];
        match whole.dtypes[index].quant() {
            None => {
                let want = cut(whole.part(index), rows, cols.clone(), whole.cols);
                assert_eq!(bits(own.part(index)), bits(&want), "{what}");
            }
            Some(quant) => {
                let ((codes, scales), (all_codes, all_scales)) =
                    (own.coded(index), whole.coded(index));
                let code_cols = quant.code_bytes(cols.start)..quant.code_bytes(cols.end);
                let width = quant.code_bytes(whole.cols);
                let want = cut(all_codes, rows.clone(), code_cols, width);
                assert!(codes == want, "{what}: codes");
                let scale_cols = quant.scales(cols.start)..quant.scales(cols.end);
                let want = cut(all_scales, rows, scale_cols, quant.scales(whole.cols));
                assert!(scales == want, "{what}: scales");
            }
        }
    }
    assert_eq!(bits(&own.bias), bits(&bias), "{what}: bias");
}

/// Cuts a checkpoint for several numbers of ranks. Returns how often that was possible.
fn check(dir: &Path, formats: &[Option<Dtype>]) -> usize {
    let opened = Opened::new(dir, 512).unwrap();
    let mut done = 0;
    for &asked in formats {
        let what = format!("{} as {asked:?}", dir.display());
        let whole = match plan(&opened, asked) {
            Ok(plan) => plan,
            // Rows of another length than the format has.
            Err(Error::Tensor { .. } | Error::Unsupported(_)) => continue,
            Err(error) => panic!("{what}: {error}"),
        };
        let all = weights(&whole);
        for ranks in [2, 3, 4, 8] {
            let Ok(cuts) = Cuts::new(&opened.config.shape, ranks, whole.blocks()) else {
                continue;
            };
            done += 1;
            for rank in 0..ranks {
                let what = format!("{what}, rank {rank} of {ranks}");
                let own = weights(&plan(&opened, asked).unwrap().cut(&cuts, rank));
                let both = matrices(&own).into_iter().zip(matrices(&all));
                for (i, ((own, matrix), (all, _))) in both.enumerate() {
                    assert_cut(
                        own,
                        all,
                        matrix,
                        &cuts,
                        rank,
                        &format!("{what}, matrix {i}"),
                    );
                }
                assert_eq!(own.norm, all.norm, "{what}");
            }
        }
    }
    done
}

fn data(name: &str) -> PathBuf {
    reference("..").join(name)
}

#[test]
fn floats_of_every_form() {
    let names = [
        "mha-f32/meta",
        "mha-f32/hf",
        "gqa-f16-mp2/meta",
        "gqa-f16-mp2/hf",
    ];
    for name in names {
        assert!(check(&reference(name), &FORMATS) >= 8, "{name}");
    }
    for form in ["meta", "hf"] {
        assert!(check(&reference(&format!("gqa-bf16/{form}")), &FORMATS) >= 3);
    }
    // Parts of one tensor, biases, norms of heads; and a head that is the embedding.
    for name in [
        "families/phi3",
        "families/qwen2",
        "families/qwen3",
        "families/llama-mlp-bias",
    ] {
        assert!(check(&data(name), &[None, Some(Dtype::Bf16)]) > 0, "{name}");
    }
}

#[test]
fn codes_of_other_programs() {
    let mut done = 0;
    for entry in std::fs::read_dir(data("quantised")).unwrap() {
        let dir = entry.unwrap().path();
        if dir.is_dir() {
            done += check(&dir, &[None, Some(Dtype::Bf16), Some(Dtype::Int8)]);
        }
    }
    assert!(done >= 10, "{done}");
}

/// Rows of which several share a word, unless every rank reads all of them.
#[test]
fn rows_of_a_word() {
    for (name, asked, rows) in [
        ("awq-g32", None, 8),
        ("awq-g32", Some(Dtype::F32), 8),
        ("awq-g32", Some(Dtype::Nf4), 1),
        ("gptq-sym-g32", None, 1),
    ] {
        let opened = Opened::new(&data("quantised").join(name), 512).unwrap();
        let [_, _, word] = plan(&opened, asked).unwrap().blocks();
        assert_eq!(word, rows, "{name} as {asked:?}");
    }
}

#[test]
fn blocks_of_gguf_files() {
    let mut done = 0;
    for entry in std::fs::read_dir(data("gguf")).unwrap() {
        let file = entry.unwrap().path();
        if file.extension().is_some_and(|end| end == "gguf") && Opened::new(&file, 512).is_ok() {
            done += check(&file, &[None, Some(Dtype::F32)]);
        }
    }
    assert!(done >= 4, "{done}");
}
