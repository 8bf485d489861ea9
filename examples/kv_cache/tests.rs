//! The example on the simulated GPU.

use clap::Parser;
use serde_json::Value;

use super::{Options, decode};

fn run(options: &str) -> Result<Value, String> {
    let gpu = if options.contains("--gpu") { "" } else { "--gpu sim" };
    let words = ["kv_cache", "--json"].into_iter();
    let words = words.chain(gpu.split_whitespace()).chain(options.split_whitespace());
    let options = Options::try_parse_from(words).map_err(|error| error.to_string())?;
    let mut out = Vec::new();
    decode(&options, &mut out).map_err(|problem| super::chain(&problem))?;
    Ok(serde_json::from_slice(&out).expect("the output is JSON"))
}

fn names(report: &Value) -> Vec<&str> {
    let forms = report["forms"].as_array().expect("a list of forms");
    forms.iter().filter_map(|form| form["form"].as_str()).collect()
}

/// Differences of results are errors, so that it ends tells that there are none.
#[test]
fn all_forms_have_the_same_results_and_the_cpus() {
    let report =
        run("--sequences 5 --steps 9 --prompt 13 --heads 3 --head-size 20 --block-tokens 8 --repeat 2").unwrap();
    assert_eq!(names(&report), ["preallocated", "elastic", "blocks", "paged"]);
    assert_eq!(report["compared_with_cpu"], true);
    let growths =
        |form: &Value| form["growths_foreseen"].as_u64().unwrap() + form["growths_unforeseen"].as_u64().unwrap();
    // Keys and values of 5 sequences, 9 times.
    assert_eq!(growths(&report["forms"][1]), 90);
    for form in report["forms"].as_array().unwrap() {
        assert!(form["tokens_per_second"].as_f64().unwrap() > 0.0, "{form}");
        assert!(form["waste_percent"].as_f64().unwrap() >= 0.0, "{form}");
        assert_eq!(form["seconds"].as_array().unwrap().len(), 2, "{form}");
    }
}

#[test]
fn what_does_not_fit_in_frames_is_fetched_in_every_step() {
    let fetched = |memory: &str| {
        let options = "--form paged --sequences 8 --steps 4 --prompt 32 --heads 2 --head-size 64 --memory";
        let report = run(&format!("{options} {memory}")).unwrap();
        report["forms"][0]["pages_fetched"].as_u64().unwrap()
    };
    // Twice the memory has frames for all the room of the regions, and none is kept free.
    let (all, half) = (fetched("200%"), fetched("50%"));
    // 8 sequences of 48 tokens, about: keys and values of 512 bytes each, 96 pages. New ones are fetched too.
    assert!(all < 40, "{all}");
    assert!(half > all + 4 * 30, "{half}, {all} with frames for all");
}

#[test]
fn one_sequence_of_one_token_does() {
    let report =
        run("--sequences 1 --steps 1 --prompt 1 --heads 1 --head-size 4 --form blocks,elastic,blocks").unwrap();
    assert_eq!(names(&report), ["blocks", "elastic"]);
    assert!(report["forms"][0]["ratio_to_preallocated"].is_null());
}

#[test]
fn what_cannot_be_run_is_refused_with_what_to_do() {
    for (options, expected) in [
        ("--head-size 30", "a multiple of 4 from 4 to 128"),
        ("--head-size 132", "a multiple of 4 from 4 to 128"),
        ("--block-tokens 12", "a multiple of 8"),
        ("--block-tokens 0", "a multiple of 8"),
        ("--sequences 0", "1..=65535"),
        ("--steps 0", "1..=1048576"),
        ("--form tables", "preallocated, elastic, blocks, paged, managed"),
        ("--form managed", "needs an NVIDIA GPU"),
        ("--memory 0%", "a share is a number above 0%"),
        ("--page-size 5KiB", "a power of two from 4KiB to 2MiB"),
        ("--gpu cuda", "expected auto, sim, cuda:N"),
        (
            "--sequences 65535 --prompt 1048576 --heads 1024 --head-size 128",
            "give fewer --sequences",
        ),
    ] {
        let refused = run(options).unwrap_err();
        assert!(refused.contains(expected), "{options}: {refused}");
    }
}
