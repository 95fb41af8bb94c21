//! The examples of the pages about decoding: each compiles, and does what it says without an error.
//!
//! A page's blocks of C are parts of a program, which this makes whole: a block that defines a
//! function stands as it is, and another one becomes a function of its own, which then makes a call
//! with the options that the block has set, unless the block makes one.

use super::{compile, link_dir, root, succeed};
use std::fs;
use std::process::Command;

/// What the blocks take for granted. The model is its own draft model.
const HEAD: &str = r#"
#include "heads.h"
#include <llamabi.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *demo, *heads;
static llama_t *model;
static llama_error err = {.struct_size = sizeof err};
static const char *prompt = "Once upon a time", *file = "Once upon a time there was a little girl.";
static const char *first = "The bridge was built in 1932.", *second = "It rains.";
static int32_t tokens[64];
static size_t lens[1];
static const size_t n = 1;
static llama_result_t *r, *result;
static const char *page;
static int block;

static void fail(const llama_error *e) {
  fprintf(stderr, "%s, block %d: %s\n", page, block, e->message);
  exit(1);
}
static void want(llama_status status) {
  if (status != LLAMA_OK) fail(&err);
}
static void build(void) {
  llama_info info = {.struct_size = sizeof info};
  llama_build_options b;
  llama_build_options_init(&b, sizeof b, LLAMABI_ABI_VERSION);
  b.draft_dir = demo;
  want(llama_build(demo, NULL, &b, &model, &err));
  want(llama_get_info(model, &info, &err));
  if (!(heads = write_heads(&info))) exit(1);
  atexit(remove_heads);
  want(llama_encode_text(model, prompt, SIZE_MAX, LLAMA_ENC_BOS, tokens, 64, lens, &err));
}
static void begin(int number, llama_generate_options *o) {
  block = number;
  llama_generate_options_init(o, sizeof *o);
  o->max_gen_len = 12;
}
static void complete(llama_t *l, const llama_generate_options *o) {
  want(llama_text_completion(l, &prompt, NULL, 1, o, &r, &err));
}
static void end(llama_t *l) {
  llama_result_t *got = r ? r : result;
  if (!got || llama_result_count(got) == 0) fail(&err);
  llama_result_free(got);
  r = result = NULL;
  if (l != model) llama_free(l);
}
"#;

fn blocks(markdown: &str) -> Vec<String> {
    let mut blocks = Vec::new();
    let mut open: Option<String> = None;
    for line in markdown.lines() {
        match (&mut open, line) {
            (None, "```c") => open = Some(String::new()),
            (Some(_), "```") => blocks.extend(open.take()),
            (Some(block), line) => {
                block.push_str(line);
                block.push('\n');
            }
            _ => {}
        }
    }
    blocks
}

/// The names of models that nobody has here, as a model that is there.
fn with_demo(block: &str) -> String {
    let parts = block.split('"').enumerate();
    let quoted = parts.map(|(at, part)| match at % 2 {
        1 if part.ends_with(".gguf") || part.starts_with("vicuna-") => "demo".to_owned(),
        1 if part.starts_with("medusa-") => "heads".to_owned(),
        1 => format!("\"{part}\""),
        _ => part.to_owned(),
    });
    quoted.collect()
}

fn program(page: &str, blocks: &[String]) -> String {
    let (mut functions, mut calls) = (String::new(), String::new());
    for (i, block) in blocks.iter().enumerate() {
        let block = with_demo(block);
        if block.starts_with("static ") {
            functions += &block;
            continue;
        }
        let makes_call = block.contains("&r,") || block.contains("&result,");
        let call = if makes_call { "" } else { "complete(l, &o);" };
        functions += &format!(
            "static void block_{i}(llama_t *l) {{\n\
             llama_generate_options o, options;\n\
             begin({i}, &o), begin({i}, &options);\n\
             {{\n{block}{call}\n}}\nend(l);\n}}\n"
        );
        calls += &format!("  block_{i}(model);\n");
    }
    format!(
        "{HEAD}{functions}
int main(int argc, char **argv) {{
  if (argc != 2) return 2;
  demo = argv[1];
  page = \"{page}\";
  build();
{calls}  llama_free(model);
  return puts(\"every block ran\") < 0;
}}
"
    )
}

#[test]
fn examples_of_pages_compile_and_run() {
    for (page, least) in [
        ("docs/decoding.md", 12),
        ("docs/grammars.md", 1),
        ("docs/compression.md", 1),
    ] {
        let markdown = fs::read_to_string(root().join(page)).unwrap();
        let blocks = blocks(&markdown);
        assert!(blocks.len() >= least, "{page}: {} blocks", blocks.len());
        let name = page.replace(['/', '.'], "-");
        let source = link_dir().join(format!("{name}.c"));
        fs::write(&source, program(page, &blocks)).unwrap();
        // What an example has found out is for its reader to use.
        let unused = ["-Wno-unused", "-Wno-unused-parameter"];
        let heads = [
            "-I",
            concat!(env!("CARGO_MANIFEST_DIR"), "/tests/sanitizers"),
        ];
        let flags = [["-std=c99", "-fsanitize=undefined"], unused, heads].concat();
        let program = compile("cc", source.to_str().unwrap(), &name, &flags);
        let said = succeed(Command::new(program).arg(root().join("demo/meta")));
        assert!(said.contains("every block ran"), "{said}");
    }
}
