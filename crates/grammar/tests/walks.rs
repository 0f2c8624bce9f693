//! Random walks through masks: whatever is drawn among the allowed tokens, a finished answer satisfies what was
//! asked, and an unfinished one is the beginning of one that does.
#![allow(clippy::unwrap_used)]

mod common;

use common::schemas::schemas;
use common::validator::is_valid;
use common::{BYTES, MINI, allowed, exact, grammars, is_prefix, of_form, required, walk};
use overshot_chat::{
    Delta, End, FinishReason, Json, OutputParser, ParseOptions, Special, Start, Tokenizer, Tool,
};
use overshot_grammar::{Arguments, CallCount, CallRules, Calls, Demand, Form, Function};
use overshot_testing::asked_cases;
use serde_json::{Value, json};

/// Walks for each schema. A soak asks for many more.
fn walks() -> usize {
    asked_cases().map_or(10, |cases| (cases / 100).max(10))
}

#[test]
fn walks_end_in_valid_json_or_in_the_beginning_of_some() {
    for tokenizer in [&*MINI, &*BYTES] {
        let grammars = grammars(tokenizer);
        let (mut finished, mut seeds) = (0, overshot_testing::rng());
        for schema in schemas() {
            let grammar = grammars.compile(&of_form(Form::JsonSchema(schema.clone()))).unwrap().unwrap();
            for _ in 0..walks() {
                let seed = seeds.u64(..);
                let mut rng = fastrand::Rng::with_seed(seed);
                let start = Start::Content;
                let walk = walk(grammar.constraint(start, &[]).as_mut(), tokenizer, 120, &mut rng);
                assert!(is_prefix(&grammar, start, &walk.tokens), "seed {seed}: {schema}");
                if walk.is_finished {
                    let text = walk.text(tokenizer);
                    let value: Value = serde_json::from_str(&text)
                        .unwrap_or_else(|error| panic!("seed {seed}: {text:?} is no JSON: {error}"));
                    assert!(is_valid(&value, &schema, &schema), "seed {seed}: {text} against {schema}");
                    finished += 1;
                }
            }
        }
        let all = walks() * schemas().len();
        println!("{finished} of {all} walks over {tokenizer:?} finished");
        assert!(finished > all / 2);
    }
}

#[test]
fn objects_patterns_and_choices() {
    let grammars = grammars(&MINI);
    let choices = || vec!["yes".to_string(), "no, \"never\"".to_string(), "vielleicht\n".to_string()];
    let is_date = |text: &str| {
        let parts: Vec<&str> = text.split('-').collect();
        parts.iter().map(|part| part.len()).eq([4, 2, 2])
            && parts.iter().all(|part| part.bytes().all(|byte| byte.is_ascii_digit()))
    };
    type Check<'a> = Box<dyn Fn(&str) -> bool + 'a>;
    let cases: Vec<(Form, Check)> = vec![
        (Form::JsonObject, Box::new(|text| serde_json::from_str::<Value>(text).unwrap().is_object())),
        (Form::Pattern(r"^\d{4}-\d{2}-\d{2}$".into()), Box::new(is_date)),
        (Form::Pattern("a/b|c".into()), Box::new(|text| ["a/b", "c"].contains(&text))),
        (Form::Choice(choices()), Box::new(move |text| choices().contains(&text.to_string()))),
    ];
    let mut seeds = overshot_testing::rng();
    for (form, check) in cases {
        let grammar = grammars.compile(&of_form(form.clone())).unwrap().unwrap();
        let mut finished = 0;
        for _ in 0..walks() {
            let seed = seeds.u64(..);
            let mut rng = fastrand::Rng::with_seed(seed);
            let walk = walk(grammar.constraint(Start::Content, &[]).as_mut(), &MINI, 100, &mut rng);
            assert!(is_prefix(&grammar, Start::Content, &walk.tokens), "seed {seed}");
            if walk.is_finished {
                finished += 1;
                assert!(check(&walk.text(&MINI)), "seed {seed}: {form:?} gave {:?}", walk.text(&MINI));
            }
        }
        assert!(finished > 0, "{form:?}");
    }
}

fn tools() -> Vec<(&'static str, Value)> {
    vec![
        (
            "read_meter",
            json!({"type": "object", "properties": {
                "id": {"type": "string"}, "scale": {"type": "number", "minimum": 0, "maximum": 9},
                "unit": {"enum": ["kWh", "m³", null]}, "tags": {"type": "array", "items": {"$ref": "#/$defs/tag"},
                "maxItems": 2}}, "required": ["id"], "additionalProperties": false,
                "$defs": {"tag": {"type": "string", "maxLength": 3}}}),
        ),
        ("reset", json!({"type": "object", "properties": {}, "additionalProperties": false})),
        (
            "write",
            json!({"type": "object", "properties": {"text": {"type": "string", "minLength": 1, "maxLength": 9},
                "mode": {"type": ["string", "integer"]}, "code": {"type": "string",
                "pattern": "^[A-Z]{3}-[0-9]{4}$"}}, "required": ["code"], "additionalProperties": false}),
        ),
    ]
}

/// What our own parser makes of a walk, with the schemas that its calls must satisfy.
fn check_calls(
    tokenizer: &Tokenizer,
    start: Start,
    tokens: &[u32],
    end: End,
    count: CallCount,
    seed: u64,
) -> usize {
    let declared: Vec<Tool> = tools()
        .iter()
        .map(|(name, schema)| {
            let tool = json!({"type": "function", "function": {"name": name, "parameters": schema}});
            serde_json::from_value(tool).unwrap()
        })
        .collect();
    let options = ParseOptions { start, tools: declared, ..ParseOptions::default() };
    let mut parser = OutputParser::new(tokenizer, options);
    let deltas: Vec<Delta> = tokens.iter().flat_map(|token| parser.push(*token)).collect();
    let message = parser.finish(end).message;
    assert_eq!(message.unparsed_tool_text, "", "seed {seed}");
    assert!(!deltas.iter().any(|delta| matches!(delta, Delta::ToolCallWithdrawn { .. })), "seed {seed}");
    let whole: Vec<_> = message.tool_calls.iter().filter(|call| call.exact.is_some()).collect();
    for call in &whole {
        let schema = &tools().into_iter().find(|(name, _)| *name == call.name).unwrap().1;
        let arguments: Value = serde_json::from_str(&call.arguments).unwrap();
        assert!(is_valid(&arguments, schema, schema), "seed {seed}: {} of {}", call.arguments, call.name);
    }
    if end == End::Stop {
        assert_eq!(message.finish_reason, FinishReason::ToolCalls, "seed {seed}");
        assert_eq!(message.content, "", "seed {seed}");
        assert!(!whole.is_empty() && (count == CallCount::Several || whole.len() == 1), "seed {seed}");
    }
    whole.len()
}

#[test]
fn required_calls_are_read_as_calls_whose_arguments_fit() {
    for (tokenizer, count) in
        [(&*MINI, CallCount::Several), (&*MINI, CallCount::One), (&*BYTES, CallCount::Several)]
    {
        let functions: Vec<Function> = tools()
            .into_iter()
            .enumerate()
            .map(|(index, (name, schema))| exact(index, name, schema))
            .collect();
        let grammar = grammars(tokenizer).compile(&required(functions, count)).unwrap().unwrap();
        let (mut calls, mut seeds) = (0, overshot_testing::rng());
        for _ in 0..4 * walks() {
            let seed = seeds.u64(..);
            let mut rng = fastrand::Rng::with_seed(seed);
            let walk = walk(grammar.constraint(Start::Content, &[]).as_mut(), tokenizer, 400, &mut rng);
            assert!(is_prefix(&grammar, Start::Content, &walk.tokens), "seed {seed}");
            let end = if walk.is_finished { End::Stop } else { End::Limit };
            calls += check_calls(tokenizer, Start::Content, &walk.tokens, end, count, seed);
        }
        println!("{calls} calls over {tokenizer:?}");
        assert!(calls >= walks());
    }
}

#[test]
fn functions_without_schemas_are_held_to_the_form_alone() {
    let free = Function { index: 0, name: "reset".into(), arguments: Arguments::Free };
    let grammar = grammars(&MINI).compile(&required(vec![free], CallCount::Several)).unwrap().unwrap();
    let (mut finished, mut seeds) = (0, overshot_testing::rng());
    for _ in 0..4 * walks() {
        let seed = seeds.u64(..);
        let walk = walk(
            grammar.constraint(Start::Content, &[]).as_mut(),
            &MINI,
            400,
            &mut fastrand::Rng::with_seed(seed),
        );
        if !walk.is_finished {
            continue;
        }
        finished += 1;
        let tool = json!({"type": "function", "function": {"name": "reset"}});
        let options =
            ParseOptions { tools: vec![serde_json::from_value(tool).unwrap()], ..Default::default() };
        let mut parser = OutputParser::new(&MINI, options);
        walk.tokens.iter().for_each(|token| drop(parser.push(*token)));
        let message = parser.finish(End::Stop).message;
        assert_eq!((message.unparsed_tool_text.as_str(), message.content.as_str()), ("", ""), "seed {seed}");
        assert!(
            message.tool_calls.iter().all(|call| matches!(Json::parse(&call.arguments), Ok(Json::Object(_))))
        );
    }
    assert!(finished > 0);
}

/// Token by token, by the text of each.
fn feed(constraint: &mut dyn overshot_engine::Constraint, text: &str) -> Result<(), String> {
    for token in MINI.encode_with_specials(text).unwrap() {
        match constraint.mask()? {
            Some(mask) if !mask.allows(token) => {
                return Err(String::from_utf8_lossy(MINI.bytes_of(token)).into_owned());
            }
            _ => constraint.accept(token)?,
        }
    }
    Ok(())
}

#[test]
fn the_grammar_begins_behind_the_thinking_and_the_end_waits_for_the_answer() {
    let grammar = grammars(&MINI).compile(&of_form(Form::JsonObject)).unwrap().unwrap();
    let mut constraint = grammar.constraint(Start::Reasoning, &[7]);
    feed(constraint.as_mut(), "Let me see {{ <｜DSML｜").unwrap();
    let end = MINI.end_of_sentence();
    assert!(!allowed(constraint.as_mut(), &MINI).contains(&end), "the end came before the answer");
    feed(constraint.as_mut(), "</think>{\"a\": [1, 2]").unwrap();
    assert!(!allowed(constraint.as_mut(), &MINI).contains(&end));
    feed(constraint.as_mut(), "}").unwrap();
    assert_eq!(allowed(constraint.as_mut(), &MINI), [end, 7]);
    constraint.accept(end).unwrap();
    assert_eq!(allowed(constraint.as_mut(), &MINI), [end, 7], "an end token that ends nothing is repeated");
    assert_eq!(feed(grammar.constraint(Start::Content, &[]).as_mut(), "x"), Err("x".into()));
}

#[test]
fn offered_calls_leave_text_free_and_hold_blocks() {
    let rules = |count| CallRules { functions: vec![exact(0, "reset", tools()[1].1.clone())], count };
    let offered = |form, count| Demand { form, calls: Calls::Offered(rules(count)) };
    let grammars = grammars(&MINI);
    let text = grammars.compile(&offered(Form::Text, CallCount::One)).unwrap().unwrap();
    let block = "\n\n<｜DSML｜tool_calls>\n<｜DSML｜invoke name=\"reset\">\n\n</｜DSML｜invoke>\n</｜DSML｜tool_calls>";
    let end = Special::EndOfSentence.text();
    for good in [format!("A < b.{end}"), format!("Resetting.{block}{end}"), format!("{block}{end}")] {
        feed(text.constraint(Start::Content, &[]).as_mut(), &good).unwrap();
    }
    let thinking = format!("Hm.</think>Now.{block}{end}");
    feed(text.constraint(Start::Reasoning, &[]).as_mut(), &thinking).unwrap();
    let second = block.replace("\n</｜DSML｜tool_calls>", "\n<｜DSML｜invoke");
    for bad in ["a ｜DSML｜", &format!("{block}more"), &block.replace("reset", "set"), &second, "</｜DSML｜"]
    {
        feed(text.constraint(Start::Content, &[]).as_mut(), bad).unwrap_err();
    }
    feed(text.constraint(Start::Reasoning, &[]).as_mut(), "Hm. <｜DSML｜").unwrap_err();

    let json = grammars.compile(&offered(Form::JsonObject, CallCount::Several)).unwrap().unwrap();
    for good in [format!("{{}}{end}"), format!("{block}{end}")] {
        feed(json.constraint(Start::Content, &[]).as_mut(), &good).unwrap();
    }
    for bad in ["Resetting.", &format!("{{}}{block}")] {
        feed(json.constraint(Start::Content, &[]).as_mut(), bad).unwrap_err();
    }
    assert!(grammars.compile(&Demand::default()).unwrap().is_none());
}
