//! Any cut of an output gives the same message: every cut in two, byte by byte, and random cuts, over outputs
//! from a seeded grammar with every malformation, and over hand-written ones.

#![allow(clippy::unwrap_used)]

mod common;

use common::{check_invariants, options, parse_cut, units};
use overshot_chat::{Effort, End, Message, PromptTexts, RenderOptions, Start, parse_text, render};

const GENERATED_OUTPUTS: usize = 240;

/// Writes outputs: mostly well-formed, each rule broken now and then.
struct Grammar {
    random: fastrand::Rng,
}

impl Grammar {
    fn pick<'a>(&mut self, items: &[&'a str]) -> &'a str {
        items[self.random.usize(0..items.len())]
    }

    fn rarely(&mut self) -> bool {
        self.random.u8(0..8) == 0
    }

    fn usually<'a>(&mut self, good: &'a str, bad: &[&'a str]) -> &'a str {
        if self.rarely() { self.pick(bad) } else { good }
    }

    fn prose(&mut self) -> String {
        let words = [
            "Sure",
            " ",
            "\n",
            "\n\n",
            "naïve",
            "中文",
            "😀",
            "<",
            "</",
            "<b>",
            "2>&1",
            "<|DSML|tool_calls>",
            "a < b",
            "\"q\"",
            "\\",
            "tool_calls>",
            "{}",
            "\t",
            ".",
        ];
        (0..self.random.usize(0..5)).map(|_| self.pick(&words)).collect()
    }

    fn parameter(&mut self) -> String {
        let key = self.pick(&["id", "scale", "on", "arguments", "input", "é\"k", "id"]);
        let kind = self.pick(&["true", "false"]);
        let is_text = self.usually(kind, &["maybe", ""]);
        let value = match is_text {
            "false" if !self.rarely() => self
                .pick(&["1", "0.50", "[1, {\"a\": null}]", "{\"id\": \"A7\"}", "\"s\"", " 2 ", "-1e16"])
                .to_string(),
            _ => self.prose(),
        };
        let close = self.usually(
            "</｜DSML｜parameter>",
            &["", "</｜DSML｜invoke>", "</｜DSML｜param>", "<｜DSML｜parameter>"],
        );
        let newline = self.usually("\n", &["", " ", "x", "<｜User｜>"]);
        format!("<｜DSML｜parameter name=\"{key}\" string=\"{is_text}\">{value}{close}{newline}")
    }

    fn invoke(&mut self) -> String {
        let name = self.usually("read_meter", &["stop", "wrap", "other", "a b", "é", ""]);
        let open = self.usually("\">\n", &["\">", "\" >\n", ">\n", "\" string=\"true\">"]);
        let parameters: String = (0..self.random.usize(0..4)).map(|_| self.parameter()).collect();
        let close = self
            .usually("</｜DSML｜invoke>\n", &["</｜DSML｜invoke>", "", "</｜DSML｜invoke></｜DSML｜invoke>"]);
        format!("<｜DSML｜invoke name=\"{name}{open}{parameters}{close}")
    }

    fn block(&mut self) -> String {
        let blank = self.usually("\n\n", &["", "\n", "\n\n\n"]);
        let open = self.usually(
            "<｜DSML｜tool_calls>\n",
            &[
                "",
                "<｜DSML｜toolcalls>\n",
                "<｜DSML｜tool>",
                "<｜DSML｜tool_cal>",
                "｜DSML｜tool_calls>",
                "</｜DSML｜",
            ],
        );
        let invokes: String = (0..self.random.usize(0..4)).map(|_| self.invoke()).collect();
        let stray = if self.rarely() { self.prose() } else { String::new() };
        let close = self.usually(
            "</｜DSML｜tool_calls>",
            &["", "</｜DSML｜toolcalls>", "</｜DSML｜tool_calls", "<｜DSML｜"],
        );
        format!("{blank}{open}{invokes}{stray}{close}")
    }

    fn output(&mut self) -> String {
        let mut output = self.usually("", &["<think>", "</think>", "\n<think>"]).to_string();
        output += &self.prose();
        if self.random.bool() {
            output += &self.block();
            if self.rarely() {
                output += &self.prose();
            }
        }
        if self.random.u8(0..3) > 0 {
            output += "</think>";
        }
        output += &self.prose();
        if !self.rarely() {
            output += &self.block();
        }
        if self.rarely() {
            output += &self.prose();
            output += &self.block();
        }
        output + self.usually("<｜end▁of▁sentence｜>", &["", "<｜User｜>", "<｜end▁of▁sentence｜>more"])
    }
}

fn check_all_cuts(output: &str, start: Start, end: End, random: &mut fastrand::Rng) {
    let options = options(start);
    let units = units(output);
    let whole = parse_text(output, options.clone(), end);
    check_invariants(&whole, output);
    let check = |cuts: &[usize]| {
        let (message, _) = parse_cut(&units, cuts, &options, end);
        assert_eq!(message, whole, "{start:?} {end:?} {output:?} cut at {cuts:?}");
    };
    for cut in 0..=units.len() {
        check(&[cut]);
    }
    check(&(0..units.len()).collect::<Vec<_>>());
    for _ in 0..4 {
        let cuts: Vec<usize> = (0..random.usize(2..12)).map(|_| random.usize(0..=units.len())).collect();
        check(&cuts);
    }
}

#[test]
fn generated_outputs_parse_alike_however_they_are_cut() {
    let seed = overshot_testing::seed();
    let mut grammar = Grammar { random: fastrand::Rng::with_seed(seed) };
    let mut random = fastrand::Rng::with_seed(seed + 1);
    let (mut with_calls, mut with_unparsed) = (0, 0);
    for _ in 0..GENERATED_OUTPUTS {
        let output = grammar.output();
        for (start, end) in [(Start::Content, End::Stop), (Start::Reasoning, End::Limit)] {
            check_all_cuts(&output, start, end, &mut random);
            let message = common::parse(&output, start, end);
            with_calls += usize::from(!message.tool_calls.is_empty());
            with_unparsed += usize::from(!message.unparsed_tool_text.is_empty());
        }
    }
    // A grammar that yields only one sort of output would prove little.
    assert!(
        with_calls > 100 && with_unparsed > 100,
        "{with_calls} with calls, {with_unparsed} with unparsed"
    );
}

#[test]
fn written_outputs_parse_alike_however_they_are_cut() {
    let call = "\n\n<｜DSML｜tool_calls>\n<｜DSML｜invoke name=\"read_meter\">\n\
        <｜DSML｜parameter name=\"id\" string=\"true\">né\n\"q\" 2>&1</｜DSML｜parameter>\n\
        <｜DSML｜parameter name=\"scale\" string=\"false\">[1, 0.5]</｜DSML｜parameter>\n\
        </｜DSML｜invoke>\n</｜DSML｜tool_calls>";
    let eos = "<｜end▁of▁sentence｜>";
    let mut random = fastrand::Rng::with_seed(5);
    for output in [
        format!("Small odd number.</think>Seven.{eos}"),
        format!("Hm.{call}{eos}"),
        format!("Hm.{call}</think>Yes.\n{call}\n{call}{eos}"),
        format!("<think>a\n\n</think>\n\nb{call} c"),
        call.replace("\n\n<｜DSML｜tool_calls>", "").replace("</｜DSML｜tool_calls>", "") + "\n\ntext",
        call.replace("true", "false"),
        call.replace("id", "arguments").replace("né\n\"q\" 2>&1", "{\"a\": 1}").replace("true", "false"),
        call.replace('｜', "|"),
        "\u{1f600}\n\n\n<\n</\n\n<<<//>".to_string(),
    ] {
        for start in [Start::Content, Start::Reasoning] {
            for end in [End::Stop, End::Limit] {
                check_all_cuts(&output, start, end, &mut random);
            }
        }
    }
}

/// What was parsed from a rendered answer renders to the same answer.
#[test]
fn rendered_answers_parse_and_render_again() {
    let mut grammar = Grammar { random: fastrand::Rng::with_seed(9) };
    let texts = PromptTexts::default();
    for effort in [Effort::None, Effort::High] {
        for _ in 0..300 {
            let calls: Vec<serde_json::Value> = (0..grammar.random.usize(0..4))
                .map(|index| {
                    let arguments: serde_json::Map<String, serde_json::Value> = (0..grammar.random.usize(0..4))
                        .map(|_| {
                            let key = grammar.pick(&["id", "scale", "é", "a b\"c"]).to_string();
                            let value = match grammar.random.u8(0..4) {
                                0 => serde_json::json!(grammar.random.i64(..)),
                                1 => serde_json::json!([grammar.random.f64(), null, {"x": true}]),
                                _ => grammar.prose().into(),
                            };
                            (key, value)
                        })
                        .collect();
                    let text = serde_json::to_string(&arguments).unwrap();
                    serde_json::json!({"id": format!("call_{index}"), "function": {"name": "read_meter", "arguments": text}})
                })
                .collect();
            // Newlines at the end of content before a block are ambiguous only beyond the blank line.
            let message: Message = serde_json::from_value(serde_json::json!({
                "role": "assistant", "content": grammar.prose(), "reasoning_content": grammar.prose(), "tool_calls": calls
            }))
            .unwrap();
            let options = RenderOptions { effort, drop_thinking: false, ..RenderOptions::default() };
            let head = render(&[Message::user("go")], &options, &texts).unwrap();
            let whole = render(&[Message::user("go"), message], &options, &texts).unwrap();
            let output = whole.text()[head.text().len()..].to_string();
            let parsed = common::parse(&output, head.start(), End::Stop);
            assert_eq!(parsed.unparsed_tool_text, "", "{output:?}");
            let again = render(&[Message::user("go"), parsed.to_message()], &options, &texts).unwrap();
            assert_eq!(again.text(), whole.text());
        }
    }
}
