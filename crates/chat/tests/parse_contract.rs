//! The parser's contract, sentence by sentence: each tolerated malformation and each rule has a test of its name.

#![allow(clippy::unwrap_used)]

mod common;

use common::{options, parse};
use overshot_chat::{
    Delta, End, FinishReason, ParseOptions, ParsedMessage, PieceParser, Special, Start, ToolChoice,
    parse_text,
};

const EOS: &str = "<｜end▁of▁sentence｜>";

fn text_parameter(key: &str, value: &str) -> String {
    format!("<｜DSML｜parameter name=\"{key}\" string=\"true\">{value}</｜DSML｜parameter>\n")
}

fn json_parameter(key: &str, value: &str) -> String {
    format!("<｜DSML｜parameter name=\"{key}\" string=\"false\">{value}</｜DSML｜parameter>\n")
}

fn invoke(name: &str, parameters: &str) -> String {
    format!("<｜DSML｜invoke name=\"{name}\">\n{parameters}</｜DSML｜invoke>\n")
}

fn block(invokes: &str) -> String {
    format!("\n\n<｜DSML｜tool_calls>\n{invokes}</｜DSML｜tool_calls>")
}

/// Parses in plain chat mode; the output ends as it should.
fn chat(output: &str) -> ParsedMessage {
    parse(&format!("{output}{EOS}"), Start::Content, End::Stop)
}

fn thinking(output: &str, end: End) -> ParsedMessage {
    parse(output, Start::Reasoning, end)
}

/// The only call's arguments, nothing unparsed.
#[track_caller]
fn arguments(output: &str) -> String {
    let message = chat(output);
    assert_eq!(message.unparsed_tool_text, "");
    assert_eq!(message.finish_reason, FinishReason::ToolCalls);
    assert_eq!(message.tool_calls.len(), 1, "{message:?}");
    message.tool_calls[0].arguments.clone()
}

#[track_caller]
fn assert_unparsed(message: &ParsedMessage, unparsed: &str) {
    assert_eq!(message.tool_calls, []);
    assert_eq!(message.unparsed_tool_text, unparsed);
    assert_ne!(message.finish_reason, FinishReason::ToolCalls);
}

// ---- the states ----

#[test]
fn reasoning_content_and_calls() {
    let output =
        format!("Hm.</think>Sure.{}{EOS}", block(&invoke("read_meter", &text_parameter("id", "A7"))));
    let message = thinking(&output, End::Stop);
    assert_eq!(message.reasoning_content, "Hm.");
    assert_eq!(message.content, "Sure.");
    assert_eq!(message.tool_calls[0].name, "read_meter");
    assert_eq!(message.tool_calls[0].arguments, r#"{"id": "A7"}"#);
    assert_eq!(message.tool_calls[0].id, "call_0");
    assert_eq!(message.finish_reason, FinishReason::ToolCalls);
}

#[test]
fn call_ids_follow_the_callers_prefix() {
    let calls = invoke("stop", "") + &invoke("stop", "");
    let options = ParseOptions { call_id_prefix: "call_7f_".into(), ..options(Start::Content) };
    let message = parse_text(&block(&calls), options, End::Stop);
    let ids: Vec<&str> = message.tool_calls.iter().map(|call| call.id.as_str()).collect();
    assert_eq!(ids, ["call_7f_0", "call_7f_1"]);
}

#[test]
fn exactly_two_newlines_belong_to_a_block() {
    let call = block(&invoke("stop", ""));
    assert_eq!(chat(&format!("a\n\n{call}")).content, "a\n\n");
    assert_eq!(chat(&format!("a{call}")).content, "a");
    assert_eq!(chat(&format!("a\n{}", call.trim_start())).content, "a\n");
}

#[test]
fn text_behind_a_block_is_content_and_another_block_may_follow() {
    let call = block(&invoke("stop", ""));
    let message = chat(&format!("a{call} b{call}\n"));
    assert_eq!(message.content, "a b\n");
    assert_eq!(message.tool_calls.len(), 2);
    assert_eq!(message.tool_calls[1].id, "call_1");
}

#[test]
fn a_call_without_parameters_has_an_empty_object() {
    assert_eq!(arguments(&block(&invoke("stop", ""))), "{}");
    assert_eq!(arguments(&block(&invoke("stop", "\n"))), "{}");
}

#[test]
fn text_values_are_escaped_and_json_values_are_kept() {
    let parameters = text_parameter("id", "a\n\"b\" \\ \t\u{1} é </x> <b>")
        + &json_parameter("scale", "[1, {\"a\":1.50}]");
    assert_eq!(
        arguments(&block(&invoke("read_meter", &parameters))),
        r#"{"id": "a\n\"b\" \\ \t\u0001 é </x> <b>", "scale": [1, {"a":1.50}]}"#
    );
}

#[test]
fn nothing_counts_behind_the_end_token() {
    let message = parse(&format!("a{EOS}b{}", block(&invoke("stop", ""))), Start::Content, End::Limit);
    assert_eq!((message.content.as_str(), message.tool_calls.len()), ("a", 0));
    assert_eq!(message.finish_reason, FinishReason::Stop);
}

// ---- streaming ----

#[test]
fn text_streams_and_only_possible_beginnings_are_held() {
    let mut parser = common::piece_parser(Start::Content);
    let content = |text: &str| vec![Delta::Content(text.into())];
    assert_eq!(parser.push_text("a\n"), content("a"));
    assert_eq!(parser.push_text("\n"), []);
    assert_eq!(parser.push_text("\n"), content("\n"));
    assert_eq!(parser.push_text("<"), []);
    assert_eq!(parser.push_text("b"), content("\n\n<b"));
    assert_eq!(parser.push_text("x <"), content("x "));
    assert_eq!(parser.finish(End::Stop).deltas, content("<"));
}

#[test]
fn text_values_stream_and_json_values_wait() {
    let mut parser = common::piece_parser(Start::Content);
    let arguments = |text: &str| vec![Delta::ToolCallArguments { index: 0, text: text.into() }];
    parser.push_marked_text("\n\n<｜DSML｜tool_calls>\n");
    let start = Delta::ToolCallStart { index: 0, id: "call_0".into(), name: "read_meter".into() };
    assert_eq!(parser.push_marked_text("<｜DSML｜invoke name=\"read_meter\">"), [start]);
    assert_eq!(
        parser.push_marked_text("\n<｜DSML｜parameter name=\"id\" string=\"true\">"),
        arguments("{\"id\": \"")
    );
    assert_eq!(parser.push_text("A\n<"), arguments("A\\n"));
    assert_eq!(parser.push_text("/7</"), arguments("</7"));
    assert_eq!(parser.push_special(Special::Dsml), []);
    assert_eq!(parser.push_text("parameter"), []);
    assert_eq!(parser.push_text(">"), arguments("\""));
    assert_eq!(
        parser.push_marked_text("<｜DSML｜parameter name=\"scale\" string=\"false\">"),
        arguments(", \"scale\": ")
    );
    assert_eq!(parser.push_text("0."), []);
    assert_eq!(parser.push_text("5"), []);
    assert_eq!(parser.push_marked_text("</｜DSML｜parameter>"), arguments("0.5"));
    let end = parser.push_marked_text("</｜DSML｜invoke>");
    assert_eq!(end[0], arguments("}")[0]);
    assert!(matches!(end[1], Delta::ToolCallEnd { index: 0, .. }));
}

#[test]
fn unparsed_text_comes_as_the_last_delta() {
    let mut parser = common::piece_parser(Start::Content);
    parser.push_marked_text(&(block("junk") + " b"));
    let finished = parser.finish(End::Stop);
    assert_eq!(finished.deltas, [Delta::UnparsedToolText(block("junk"))]);
}

#[test]
fn a_cut_character_is_one_replacement() {
    let (message, _) =
        common::parse_cut(&common::units("é")[..1], &[1], &options(Start::Content), End::Limit);
    assert_eq!(message.content, "\u{fffd}");
}

// ---- ends ----

#[test]
fn a_held_tail_of_plain_text_is_sent_at_the_end() {
    for tail in ["\n", "\n\n", "\n\n<", "<", "</", "\n\n\n"] {
        for end in [End::Stop, End::Limit] {
            assert_eq!(parse(&format!("a{tail}"), Start::Content, end).content, format!("a{tail}"));
            assert_eq!(
                parse(&format!("a{tail}"), Start::Reasoning, end).reasoning_content,
                format!("a{tail}")
            );
        }
    }
}

#[test]
fn a_begun_tag_is_dropped_at_the_end() {
    for tail in ["\n\n<｜DSML｜", "\n\n<｜DSML｜tool_cal", "<｜DSML｜invoke name=\"re", "</｜DSML｜tool"]
    {
        for end in [End::Stop, End::Limit] {
            let message = parse(&format!("a{tail}"), Start::Content, end);
            assert_eq!(
                (message.content.as_str(), message.unparsed_tool_text.as_str()),
                ("a", ""),
                "{tail:?}"
            );
        }
    }
}

#[test]
fn a_call_cut_by_a_limit_is_sent_as_far_as_it_came() {
    let head = "\n\n<｜DSML｜tool_calls>\n<｜DSML｜invoke name=\"read_meter\">\n";
    for (tail, arguments) in [
        ("", ""),
        ("<｜DSML｜parameter name=\"id\" string=\"true\">A", "{\"id\": \"A"),
        ("<｜DSML｜parameter name=\"id\" string=\"true\">A</", "{\"id\": \"A</"),
        ("<｜DSML｜parameter name=\"id\" string=\"true\">A</｜DSML｜para", "{\"id\": \"A"),
        ("<｜DSML｜parameter name=\"id\" string=\"true\">A</｜DSML｜parameter>\n", "{\"id\": \"A\""),
        ("<｜DSML｜parameter name=\"scale\" string=\"false\">[1, 2", "{\"scale\": [1, 2"),
        ("<｜DSML｜parameter name=\"scale\" string=\"false\">one \"", "{\"scale\": \"one \\\""),
        ("<｜DSML｜parameter name=\"input\" string=\"false\">{\"a\"", "{\"input\": {\"a\""),
        ("<｜DSML｜parameter na", ""),
        ("<", ""),
        ("</", ""),
        ("<｜DSML｜parameter name=\"id\" string=\"true\">A</｜DSML｜parameter>\n<", "{\"id\": \"A\""),
        ("<｜DSML｜parameter name=\"id\" string=\"true\">A</｜DSML｜parameter>\n</", "{\"id\": \"A\""),
    ] {
        let message = parse(&format!("{head}{tail}"), Start::Content, End::Limit);
        assert_eq!(message.finish_reason, FinishReason::Length, "{tail}");
        assert_eq!(message.unparsed_tool_text, "", "{tail}");
        assert_eq!(message.tool_calls.len(), 1, "{tail}");
        assert_eq!(message.tool_calls[0].arguments, arguments, "{tail}");
        assert_eq!(message.tool_calls[0].exact, None);
    }
}

#[test]
fn a_bracket_that_the_end_cut_between_tags_began_one() {
    let calls = format!("\n\n<｜DSML｜tool_calls>\n{}", invoke("stop", ""));
    for (tail, unparsed) in [("<", ""), ("</", ""), ("</｜DSML｜tool", ""), ("so: </", "so: </")] {
        for output in [format!("{calls}{tail}"), format!("{calls}{tail}{EOS}")] {
            for end in [End::Stop, End::Limit] {
                let message = parse(&output, Start::Content, end);
                assert_eq!(message.finish_reason, FinishReason::ToolCalls, "{tail}");
                assert_eq!(message.unparsed_tool_text, unparsed, "{tail}");
                assert_eq!((message.tool_calls.len(), message.content.as_str()), (1, ""), "{tail}");
            }
        }
    }
}

#[test]
fn a_call_cut_by_the_end_token_is_no_call() {
    let cut = "\n\n<｜DSML｜tool_calls>\n<｜DSML｜invoke name=\"stop\">\n<｜DSML｜parameter name=\"id\" string=\"true\">A";
    assert_unparsed(&chat(&format!("a{cut}")), cut);
    let finished = invoke("stop", "");
    let message =
        chat(&format!("\n\n<｜DSML｜tool_calls>\n{finished}<｜DSML｜invoke name=\"read_meter\">\n"));
    assert_eq!(message.tool_calls.len(), 1);
    assert_eq!(message.unparsed_tool_text, "<｜DSML｜invoke name=\"read_meter\">\n");
    assert_eq!(message.finish_reason, FinishReason::ToolCalls);
}

#[test]
fn a_withdrawn_call_is_announced_as_such() {
    let mut parser = common::piece_parser(Start::Content);
    parser.push_marked_text("<｜DSML｜invoke name=\"stop\">\n");
    let finished = parser.finish(End::Stop);
    assert_eq!(finished.deltas[0], Delta::ToolCallWithdrawn { index: 0 });
    assert_eq!(finished.message.tool_calls, []);
}

#[test]
fn finish_reasons() {
    let call = block(&invoke("stop", ""));
    for (output, end, reason) in [
        ("a".to_string(), End::Stop, FinishReason::Stop),
        ("a".to_string(), End::Limit, FinishReason::Length),
        (call.clone(), End::Limit, FinishReason::ToolCalls),
        (call.clone() + " and", End::Limit, FinishReason::ToolCalls),
        (call.clone() + &call[..call.find("</").unwrap()], End::Limit, FinishReason::Length),
        (call.clone() + EOS, End::Limit, FinishReason::ToolCalls),
    ] {
        assert_eq!(parse(&output, Start::Content, end).finish_reason, reason, "{output:?} {end:?}");
    }
}

// ---- what is a call ----

#[test]
fn names_outside_the_alphabet_are_unparsed() {
    for name in ["", "a b", "é", "a\"b", &"x".repeat(65), "a/b"] {
        let raw = block(&invoke(name, &text_parameter("id", "A")));
        assert_unparsed(&chat(&format!("a{raw}")), &raw);
    }
    for name in ["unknown", "a.b-c_9", &"x".repeat(64)] {
        assert_eq!(chat(&block(&invoke(name, ""))).tool_calls[0].name, name);
    }
}

#[test]
fn without_tools_or_with_choice_none_every_block_is_unparsed() {
    let raw = block(&invoke("stop", &text_parameter("id", "A")));
    for options in
        [ParseOptions::default(), ParseOptions { tool_choice: ToolChoice::None, ..options(Start::Content) }]
    {
        let message = parse_text(&format!("a{raw} b{EOS}"), options.clone(), End::Stop);
        assert_unparsed(&message, &raw);
        assert_eq!(message.content, "a b");
        assert_unparsed(&parse_text(&block(""), options.clone(), End::Stop), &block(""));
        let reasoning = ParseOptions { start: Start::Reasoning, ..options };
        let message = parse_text(&format!("a{raw}{EOS}"), reasoning, End::Stop);
        assert_unparsed(&message, &raw);
        assert_eq!(message.reasoning_content, "a");
    }
}

#[test]
fn a_good_call_beside_a_bad_one_counts() {
    let bad = "<｜DSML｜invoke name=\"a b\">\n</｜DSML｜invoke>";
    let message = chat(&block(&format!("{bad}\n{}stray\n", invoke("stop", ""))));
    assert_eq!(message.tool_calls.len(), 1);
    assert_eq!(message.unparsed_tool_text, format!("{bad}stray\n"));
}

#[test]
fn text_inside_a_call_makes_it_no_call() {
    let raw = block(&invoke("read_meter", "{\"id\": \"A7\"}\n"));
    assert_unparsed(&chat(&raw), &raw);
}

#[test]
fn a_value_that_another_tag_interrupts_makes_its_call_no_call() {
    let raw = block(&invoke("read_meter", "<｜DSML｜parameter name=\"id\" string=\"true\">A7\n"));
    assert_unparsed(&chat(&raw), &raw);
    let open = "<｜DSML｜invoke name=\"read_meter\">\n<｜DSML｜parameter name=\"id\" string=\"true\">A7\n";
    let message = chat(&block(&format!("{open}{}", invoke("stop", ""))));
    assert_eq!(message.tool_calls.len(), 1);
    assert_eq!(message.tool_calls[0].name, "stop");
    assert_eq!(message.unparsed_tool_text, open);
}

#[test]
fn broken_markup_is_unparsed_and_the_rest_is_content() {
    for (output, content, unparsed) in [
        ("a <｜DSML｜foo x>b", "a b", "<｜DSML｜foo x>"),
        ("a <｜DSML｜ is the marker", "a  is the marker", "<｜DSML｜"),
        ("a ｜DSML｜ b", "a  b", "｜DSML｜"),
        ("a ｜DSML｜tool_calls> b", "a  b", "｜DSML｜tool_calls>"),
        ("a </｜DSML｜ b", "a  b", "</｜DSML｜"),
        ("a<｜DSML｜tool_calls\nb", "a\nb", "<｜DSML｜tool_calls"),
    ] {
        let message = chat(output);
        assert_eq!(
            (message.content.as_str(), message.unparsed_tool_text.as_str()),
            (content, unparsed),
            "{output}"
        );
    }
}

#[test]
fn a_parameter_outside_any_call_is_unparsed() {
    let raw = text_parameter("id", "A");
    let message = chat(&format!("a {raw}b"));
    assert_eq!((message.content.as_str(), message.unparsed_tool_text.as_str()), ("a \nb", raw.trim_end()));
}

// ---- tolerated malformations ----

#[test]
fn tolerates_wrong_names_of_the_block() {
    for name in ["toolcalls", "tool"] {
        let output = block(&invoke("stop", "")).replace("tool_calls", name);
        assert_eq!(arguments(&output), "{}");
        assert_eq!(arguments(&output.replacen(name, "tool_calls", 1)), "{}");
    }
}

#[test]
fn tolerates_calls_without_the_block() {
    let call = invoke("read_meter", &text_parameter("id", "A7"));
    let message = chat(&format!("a\n\n{call}{call}\nb"));
    assert_eq!(message.tool_calls.len(), 2);
    assert_eq!((message.content.as_str(), message.unparsed_tool_text.as_str()), ("a\n\nb", ""));
    assert_eq!(arguments(&format!("a{call}</｜DSML｜tool_calls>")), r#"{"id": "A7"}"#);
}

#[test]
fn tolerates_a_missing_blank_line() {
    let message = chat(&format!("a{}", block(&invoke("stop", "")).trim_start()));
    assert_eq!((message.content.as_str(), message.tool_calls.len()), ("a", 1));
}

#[test]
fn tolerates_an_empty_block() {
    let message = chat(&format!("a{} b", block("")));
    assert_unparsed(&message, "");
    assert_eq!(message.content, "a b");
    assert_eq!(message.finish_reason, FinishReason::Stop);
}

#[test]
fn an_opener_that_nothing_follows_is_unparsed() {
    assert_unparsed(&chat("a\n\n<｜DSML｜tool_calls>\n"), "\n\n<｜DSML｜tool_calls>\n");
}

#[test]
fn tolerates_stray_closing_tags() {
    let message = chat("a</｜DSML｜tool_calls>b</｜DSML｜parameter></｜DSML｜invoke>c");
    assert_eq!((message.content.as_str(), message.unparsed_tool_text.as_str()), ("abc", ""));
    let parameter = text_parameter("id", "A7") + "</｜DSML｜parameter>\n";
    let twice = invoke("read_meter", &parameter) + "</｜DSML｜invoke>\n</｜DSML｜parameter>\n";
    assert_eq!(arguments(&(block(&twice) + "</｜DSML｜tool_calls>")), r#"{"id": "A7"}"#);
}

#[test]
fn tolerates_missing_newlines_between_tags() {
    let parameters = text_parameter("id", "A7") + &json_parameter("scale", "2");
    let output = block(&invoke("read_meter", &parameters)).replace('\n', "");
    assert_eq!(arguments(&output), r#"{"id": "A7", "scale": 2}"#);
}

#[test]
fn tolerates_a_value_that_is_not_json() {
    for (value, json) in [("hello", r#""hello""#), ("[1,", r#""[1,""#), ("", r#""""#), ("NaN", r#""NaN""#)] {
        let output = block(&invoke("read_meter", &json_parameter("scale", value)));
        assert_eq!(arguments(&output), format!("{{\"scale\": {json}}}"));
    }
}

#[test]
fn a_text_value_stays_text() {
    for value in ["123", "true", "null", "{\"a\": 1}"] {
        let output = block(&invoke("read_meter", &text_parameter("id", value)));
        let parsed: serde_json::Value = serde_json::from_str(&arguments(&output)).unwrap();
        assert_eq!(parsed["id"], value);
    }
}

#[test]
fn a_text_value_stays_text_where_the_schema_says_otherwise() {
    let output =
        block(&invoke("read_meter", &(text_parameter("on", "true") + &text_parameter("scale", "1"))));
    assert_eq!(arguments(&output), r#"{"on": "true", "scale": "1"}"#);
}

#[test]
fn tolerates_a_repeated_parameter() {
    let parameters = text_parameter("id", "A")
        + &text_parameter("id", "B")
        + &json_parameter("id", "[")
        + &text_parameter("x", "C");
    assert_eq!(arguments(&block(&invoke("read_meter", &parameters))), r#"{"id": "A", "x": "C"}"#);
}

#[test]
fn tolerates_arguments_wrapped_in_one_parameter() {
    let object = r#"{"id": "A7",  "scale": 1.0}"#;
    for key in ["arguments", "input"] {
        let wrapped = json_parameter(key, object);
        assert_eq!(arguments(&block(&invoke("read_meter", &wrapped))), object);
        let kept = format!("{{\"{key}\": {object}}}");
        assert_eq!(arguments(&block(&invoke("stop", &wrapped))), kept, "a tool without a schema");
        assert_eq!(arguments(&block(&invoke("unknown", &wrapped))), kept, "a tool that was not declared");
        let two = wrapped.clone() + &text_parameter("id", "B");
        let expected = format!("{{\"{key}\": {object}, \"id\": \"B\"}}");
        assert_eq!(arguments(&block(&invoke("read_meter", &two))), expected, "not alone");
        let list = json_parameter(key, "[1]");
        assert_eq!(
            arguments(&block(&invoke("read_meter", &list))),
            format!("{{\"{key}\": [1]}}"),
            "no object"
        );
        let text = text_parameter(key, "{}");
        assert_eq!(
            arguments(&block(&invoke("read_meter", &text))),
            format!("{{\"{key}\": \"{{}}\"}}"),
            "text"
        );
    }
    let own = json_parameter("arguments", object);
    assert_eq!(arguments(&block(&invoke("wrap", &own))), format!("{{\"arguments\": {object}}}"));
}

#[test]
fn bars_in_ascii_are_no_markup() {
    let output = block(&invoke("stop", "")).replace('｜', "|");
    let message = chat(&output);
    assert_eq!(message.content, output);
    assert_unparsed(&message, "");
}

#[test]
fn a_closing_tag_glued_to_its_value_ends_it() {
    let output = block(&invoke("read_meter", &text_parameter("id", "ls 2>&1")));
    assert_eq!(arguments(&output), r#"{"id": "ls 2>&1"}"#);
    let output = block(&invoke("read_meter", &text_parameter("id", "a < b <</")));
    assert_eq!(arguments(&output), r#"{"id": "a < b <</"}"#);
}

#[test]
fn keys_and_text_are_read_without_escapes() {
    let output = block(&invoke("read_meter", &text_parameter("a\"b>c", "&lt;")));
    assert_eq!(arguments(&output), r#"{"a\"b>c": "&lt;"}"#);
}

// ---- blocks in the reasoning ----

#[test]
fn a_block_that_ends_the_reasoning_counts() {
    let call = block(&invoke("read_meter", &text_parameter("id", "A7")));
    for (output, end) in [(format!("Hm.{call}{EOS}"), End::Stop), (format!("Hm.{call}"), End::Limit)] {
        let message = thinking(&output, end);
        assert_eq!(message.reasoning_content, "Hm.");
        assert_eq!(message.tool_calls.len(), 1);
        assert_eq!(message.content, "");
        assert_eq!(message.finish_reason, FinishReason::ToolCalls);
    }
    let bare = thinking(&format!("Hm.{}{EOS}", invoke("stop", "").trim_end()), End::Stop);
    assert_eq!(bare.tool_calls.len(), 1);
}

#[test]
fn a_block_that_was_only_thought_about_stays_reasoning() {
    let call = block(&invoke("read_meter", &text_parameter("id", "A7")));
    for behind in [" or so", "\n", "</think>", "<｜User｜>", &call, "<｜DSML｜tool"] {
        let thought = format!("Hm.{call}");
        let message = thinking(&format!("{thought}{behind}</think>Yes.{EOS}"), End::Stop);
        assert!(message.reasoning_content.starts_with(&thought), "{behind:?} {message:?}");
        assert_eq!(message.tool_calls, [], "{behind:?}");
        assert_eq!(message.unparsed_tool_text, "", "{behind:?}");
        assert!(message.content.ends_with("Yes."), "{behind:?} {message:?}");
    }
    let message = thinking(&format!("Hm.{call}</think>Yes.{call}{EOS}"), End::Stop);
    assert_eq!(message.reasoning_content, format!("Hm.{call}"));
    assert_eq!(message.tool_calls.len(), 1);
    assert_eq!(message.tool_calls[0].id, "call_0");
}

#[test]
fn a_block_cut_in_the_reasoning_is_reasoning() {
    let call = block(&invoke("read_meter", &text_parameter("id", "A7")));
    for cut in 1..call.chars().count() {
        let begun: String = call.chars().take(cut).collect();
        if begun.matches('｜').count() % 2 == 1 {
            continue;
        }
        // A marker is one token: a cut inside one cannot happen.
        let begun = begun.trim_end_matches("｜DSML").to_string();
        for end in [End::Stop, End::Limit] {
            let message = thinking(&format!("Hm.{begun}"), end);
            assert_eq!(message.reasoning_content, format!("Hm.{begun}"));
            assert_eq!(message.tool_calls, []);
            assert_eq!(message.unparsed_tool_text, "");
        }
    }
}

// ---- thinking ----

#[test]
fn without_a_closing_tag_everything_is_reasoning() {
    for end in [End::Stop, End::Limit] {
        let message = thinking("Hm. <think> x", end);
        assert_eq!((message.reasoning_content.as_str(), message.content.as_str()), ("Hm. <think> x", ""));
    }
}

#[test]
fn with_thinking_off_a_leading_thought_is_removed() {
    assert_eq!(chat("<think>Hm.</think>Yes.").content, "Yes.");
    assert_eq!(chat("<think>Hm.</think>Yes.").reasoning_content, "");
    assert_eq!(chat("</think>Yes.").content, "Yes.");
    assert_eq!(chat("\n<think>Hm.</think>Yes.").content, "Yes.");
    assert_eq!(chat("Yes.<think>Hm.</think>No.").content, "Yes.Hm.No.");
    let unclosed = chat("<think>Hm.");
    assert_eq!((unclosed.reasoning_content.as_str(), unclosed.content.as_str()), ("Hm.", ""));
}

#[test]
fn markers_appear_in_no_field_but_reasoning_and_unparsed_text() {
    let marks = "<｜User｜></think><think><｜title｜>";
    let message = chat(&format!("a{marks}b"));
    assert_eq!(message.content, "ab");
    let output = block(&invoke("read_meter", &text_parameter("id", &format!("A{marks}7"))));
    assert_eq!(arguments(&output), r#"{"id": "A7"}"#);
    assert_eq!(thinking("a<｜User｜>b</think>c", End::Stop).reasoning_content, "a<｜User｜>b");
}

#[test]
fn a_new_parser_holds_nothing() {
    let finished = PieceParser::new(ParseOptions::default()).finish(End::Stop);
    assert_eq!(finished.deltas, []);
    assert_eq!(finished.message, ParsedMessage::default());
}
