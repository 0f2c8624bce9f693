//! Mutated inputs of every kind: nothing panics, errors are one sentence.

#![allow(clippy::unwrap_used)]

mod common;

use common::{check_invariants, options, parse_cut};
use overshot_chat::{
    Effort, End, Json, Message, PromptTexts, RenderOptions, Special, Start, Tokenizer, parse_text, render,
};

fn cases() -> usize {
    overshot_testing::cases(2000)
}

/// A few edits: removed, repeated, replaced or inserted stretches.
fn mutate(text: &str, dictionary: &[&str], random: &mut fastrand::Rng) -> String {
    let edits = random.usize(1..6);
    edit(text, edits, dictionary, random)
}

fn edit(text: &str, edits: usize, dictionary: &[&str], random: &mut fastrand::Rng) -> String {
    let mut text = text.to_string();
    for _ in 0..edits {
        let boundary =
            |text: &str, at: usize| (0..=at).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0);
        let from = boundary(&text, random.usize(0..=text.len()));
        let to = boundary(&text, (from + random.usize(0..24)).min(text.len())).max(from);
        let piece = text[from..to].to_string();
        match random.u8(0..5) {
            0 => text.replace_range(from..to, ""),
            1 => text.insert_str(from, &piece.repeat(random.usize(1..4))),
            2 => text.replace_range(from..to, dictionary[random.usize(0..dictionary.len())]),
            3 => text.insert_str(from, dictionary[random.usize(0..dictionary.len())]),
            _ => text.truncate(to),
        }
    }
    text
}

const MARKUP: &[&str] = &[
    "｜DSML｜",
    "<｜DSML｜",
    "</｜DSML｜",
    "<",
    "</",
    ">",
    "\">",
    "tool_calls>",
    "<｜DSML｜tool_calls>",
    "</｜DSML｜tool_calls>",
    "<｜DSML｜invoke name=\"",
    "</｜DSML｜invoke>",
    "<｜DSML｜parameter name=\"",
    "</｜DSML｜parameter>",
    "\" string=\"true\">",
    "\" string=\"false\">",
    "\n\n",
    "\n",
    "<think>",
    "</think>",
    "<｜end▁of▁sentence｜>",
    "<｜User｜>",
    "{",
    "}",
    "\"",
    "é",
    "😀",
    "arguments",
    "input",
];

const OUTPUTS: &[&str] = &[
    "Hm.</think>Sure.\n\n<｜DSML｜tool_calls>\n<｜DSML｜invoke name=\"read_meter\">\n\
     <｜DSML｜parameter name=\"id\" string=\"true\">né \"q\"</｜DSML｜parameter>\n\
     <｜DSML｜parameter name=\"scale\" string=\"false\">[1, 0.5]</｜DSML｜parameter>\n\
     </｜DSML｜invoke>\n<｜DSML｜invoke name=\"stop\">\n\n</｜DSML｜invoke>\n</｜DSML｜tool_calls><｜end▁of▁sentence｜>",
    "<｜DSML｜invoke name=\"read_meter\">\n<｜DSML｜parameter name=\"arguments\" string=\"false\">{\"id\": \"A\"}\
     </｜DSML｜parameter>\n</｜DSML｜invoke> text\n\n<｜DSML｜toolcalls></｜DSML｜toolcalls>",
    "<think>a</think>b\n\n<｜DSML｜tool>\n<｜DSML｜invoke name=\"a b\">x</｜DSML｜invoke></｜DSML｜tool>c",
];

#[test]
fn mutated_outputs_parse_alike_however_they_are_cut() {
    let seed = overshot_testing::seed();
    let mut random = fastrand::Rng::with_seed(seed);
    for case in 0..cases() {
        let output = mutate(OUTPUTS[random.usize(0..OUTPUTS.len())], MARKUP, &mut random);
        let start = if random.bool() { Start::Reasoning } else { Start::Content };
        let end = if random.bool() { End::Stop } else { End::Limit };
        let options = options(start);
        let whole = parse_text(&output, options.clone(), end);
        check_invariants(&whole, &output);
        let units = common::units(&output);
        for cuts in [vec![random.usize(0..=units.len())], (0..=units.len()).collect()] {
            let (message, _) = parse_cut(&units, &cuts, &options, end);
            assert_eq!(message, whole, "seed {seed} case {case}: {output:?} cut at {cuts:?}");
        }
        let sent = whole.content.len() + whole.reasoning_content.len() + whole.unparsed_tool_text.len();
        assert!(sent <= output.len(), "more text than there was: {output:?} {whole:?}");
    }
}

/// Text is lost only where the contract says so: without markers, nothing is.
#[test]
fn plain_outputs_pass_unchanged() {
    let mut random = overshot_testing::rng();
    for _ in 0..cases() {
        let words = ["a", "\n", "<", "/", ">", " ", "中", "DSML", "|", "｜", "\"", "tool_calls"];
        let output: String = (0..random.usize(0..30)).map(|_| words[random.usize(0..words.len())]).collect();
        if Special::find(&output).is_some() {
            continue;
        }
        assert_eq!(common::parse(&output, Start::Content, End::Limit).content, output);
        assert_eq!(common::parse(&output, Start::Reasoning, End::Limit).reasoning_content, output);
    }
}

/// Nothing in a long output multiplies: all fields together hold little more than what came.
#[test]
fn long_hostile_outputs_send_little_more_than_came() {
    let repeated = |text: &str, times: usize| text.repeat(times);
    for output in [
        repeated("\n", 200_000),
        repeated("<｜DSML｜", 50_000),
        repeated("<｜DSML｜invoke name=\"stop\">", 20_000),
        format!(
            "<｜DSML｜invoke name=\"stop\">{}",
            repeated("<｜DSML｜parameter name=\"a\" string=\"false\">", 20_000)
        ),
        format!("<｜DSML｜parameter name=\"{}", repeated("x", 500_000)),
        repeated("\n\n<｜DSML｜tool_calls></｜DSML｜tool_calls>", 20_000),
        format!(
            "<｜DSML｜invoke name=\"stop\"><｜DSML｜parameter name=\"a\" string=\"false\">{}",
            repeated("[", 500_000)
        ),
    ] {
        for start in [Start::Content, Start::Reasoning] {
            let message = common::parse(&output, start, End::Limit);
            check_invariants(&message, &output.chars().take(40).collect::<String>());
            let calls: usize = message.tool_calls.iter().map(|call| call.arguments.len()).sum();
            let fields = [&message.content, &message.reasoning_content, &message.unparsed_tool_text];
            let sent = calls + fields.iter().map(|field| field.len()).sum::<usize>();
            assert!(sent <= output.len() + 100, "{sent} bytes sent of {}", output.len());
        }
    }
}

#[test]
fn mutated_tokenizers_load_or_are_refused_in_one_sentence() {
    let seed = overshot_testing::seed();
    let mut random = fastrand::Rng::with_seed(seed);
    let good = std::fs::read_to_string(common::model_folder().join("tokenizer.json")).unwrap();
    // Most of the file is vocabulary and merges; edits must also reach what stands around them.
    let places = [
        "\"added_tokens\"",
        "\"pre_tokenizer\"",
        "\"model\"",
        "\"vocab\"",
        "\"merges\"",
        "<｜User｜>",
        "\"normalizer\"",
    ];
    let dictionary = [
        "\"",
        "{",
        "}",
        "[",
        "]",
        ",",
        "0",
        "-1",
        "4294967295",
        "null",
        "true",
        "\\\\",
        "(",
        "*",
        "Ġ",
        "\u{0}",
    ];
    let mut loaded = 0;
    for case in 0..cases() {
        let place = good.find(places[random.usize(0..places.len())]).unwrap_or(0);
        let from = (0..=place).rev().find(|at| good.is_char_boundary(*at)).unwrap_or(0);
        let to = (place + 400..).find(|at| good.is_char_boundary(*at)).unwrap_or(good.len()).min(good.len());
        let mut changed = edit(&good[from..to], 1, &dictionary, &mut random);
        if random.u8(0..4) == 0 {
            changed.clear();
        }
        let bad = [&good[..from], changed.as_str(), &good[to..]].concat();
        match Tokenizer::from_bytes(bad.as_bytes(), "tokenizer.json") {
            Ok(tokenizer) => {
                loaded += 1;
                let text = "A text <｜User｜> with\n\n12345 naïve 中文 <｜DSML｜";
                for ids in
                    [tokenizer.encode(text), tokenizer.encode_with_specials(text)].into_iter().flatten()
                {
                    assert!(ids.iter().all(|id| (*id as usize) < tokenizer.vocabulary_size()));
                }
            }
            Err(error) => {
                let error = error.to_string();
                assert!(!error.contains('\n') && error.len() < 600, "seed {seed} case {case}: {error}");
            }
        }
    }
    assert!(loaded > 5, "{loaded}");
}

#[test]
fn mutated_prompt_files_load_or_are_refused() {
    let mut random = overshot_testing::rng();
    let json = std::fs::read_to_string(common::model_folder().join("encoding/prompts.json")).unwrap();
    let script = "import json\ndsml_token: str = \"｜DSML｜\"\nTOOLS_TEMPLATE = f\"\"\"Tools\n<{dsml_token}x> {{{{a}}}}\n\
        {{tool_schemas}}\nEnd\n\"\"\"\nREASONING_EFFORT_MAX = (\n  'a' # b\n  r\"\\n\"\n)\n\
        response_format_template = 'x' + '\\n{schema}'\nREASONING_EFFORT_PROMPTS = {'max': 'M', \"low\": '''L'''}\n\
        def f(x):\n    return {1: [x]}\n";
    let code = [
        "\"",
        "'",
        "\"\"\"",
        "'''",
        "(",
        ")",
        "{",
        "}",
        "{{",
        "\\",
        "\n",
        "+",
        "=",
        "f",
        "r",
        "#",
        ":",
        "é",
        "\\N{",
        "\\x",
        "TOOLS_TEMPLATE",
    ];
    for _ in 0..cases() {
        if let Err(error) = PromptTexts::from_json(&mutate(&json, &code, &mut random), "prompts.json") {
            assert!(!error.to_string().contains('\n'), "{error}");
        }
        let texts =
            PromptTexts::from_encoding_script(&mutate(script, &code, &mut random), "encoding_dsv4.py");
        let _ = (
            texts.around_tools().is_ok(),
            texts.before_schema().is_ok(),
            texts.effort_text(Effort::Max).is_ok(),
        );
        assert!(texts.warnings().len() <= 4);
    }
}

#[test]
fn mutated_json_reads_back_as_itself() {
    let seed = overshot_testing::seed();
    let mut random = fastrand::Rng::with_seed(seed);
    let text = r#"{"a": [1.5e-3, -0, 1e16, 10000000000000000000000, true, null], "é": {"k": "\u00e9\ud83d\ude00\n\"", "": {}}}"#;
    let pieces = [
        "{", "}", "[", "]", ",", ":", "\"", "\\", "\\u", "d83d", "e", "-", "0", "1e400", "nul", " ", "\u{1}",
        "é",
    ];
    for case in 0..cases() {
        let changed = mutate(text, &pieces, &mut random);
        let ours = Json::parse(&changed);
        let theirs = serde_json::from_str::<serde_json::Value>(&changed);
        // serde_json refuses numbers beyond float range; Python and this crate do not.
        let out_of_range = theirs.as_ref().is_err_and(|error| error.to_string().contains("out of range"));
        if !out_of_range {
            assert_eq!(ours.is_ok(), theirs.is_ok(), "seed {seed} case {case}: {changed}");
        }
        if let Ok(json) = ours {
            let spelled = json.to_python_text();
            if !spelled.contains("Infinity") {
                assert_eq!(Json::parse(&spelled).map(|json| json.to_python_text()), Ok(spelled), "{changed}");
            }
        }
    }
}

#[test]
fn mutated_conversations_render_or_are_refused() {
    let mut random = overshot_testing::rng();
    let vectors = std::fs::read_to_string(common::repository().join("fixtures/chat_vectors.json")).unwrap();
    let vectors: serde_json::Value = serde_json::from_str(&vectors).unwrap();
    let conversations: Vec<String> =
        vectors["encode"].as_array().unwrap().iter().map(|vector| vector["messages"].to_string()).collect();
    let texts = PromptTexts::from_model_folder(&common::model_folder()).unwrap();
    let words = [
        "\"",
        "user",
        "tool",
        "assistant",
        "system",
        "developer",
        "null",
        "[]",
        "{}",
        "<｜User｜>",
        ",",
        "\\\"",
    ];
    let mut rendered = 0;
    for _ in 0..cases() {
        let changed = mutate(&conversations[random.usize(0..conversations.len())], &words, &mut random);
        let Ok(messages) = serde_json::from_str::<Vec<Message>>(&changed) else { continue };
        for effort in [Effort::None, Effort::Max] {
            let options = RenderOptions { effort, ..RenderOptions::default() };
            if let Ok(prompt) = render(&messages, &options, &texts) {
                rendered += 1;
                let ids = prompt.ids(common::tokenizer()).unwrap();
                let bytes: Vec<u8> =
                    ids.iter().flat_map(|id| common::tokenizer().bytes_of(*id)).copied().collect();
                assert_eq!(String::from_utf8(bytes).unwrap(), prompt.text());
            }
        }
    }
    assert!(rendered > cases() / 20, "{rendered}");
}
