//! What the address of a request asks for behind its `?`.

use super::items::Item;
use crate::error::ApiError;
use axum::http::Uri;
use std::str::FromStr;

/// Items on a page, unless asked otherwise, and at most.
const PAGE_ITEMS: usize = 20;
const PAGE_ITEMS_MAX: usize = 100;

pub struct Query<'a> {
    text: &'a str,
}

/// A part of a list.
pub struct Page<'a> {
    pub items: Vec<&'a Item>,
    pub has_more: bool,
}

impl<'a> Query<'a> {
    pub fn new(uri: &'a Uri) -> Self {
        Query { text: uri.query().unwrap_or_default() }
    }

    /// The last value of a parameter. None of those that are known holds characters that need escaping.
    fn value(&self, name: &str) -> Option<&'a str> {
        let mut pairs = self.text.split('&').filter_map(|pair| pair.split_once('='));
        pairs.rfind(|(key, _)| *key == name).map(|(_, value)| value)
    }

    pub fn is_true(&self, name: &str) -> bool {
        self.value(name).is_some_and(|value| value.eq_ignore_ascii_case("true"))
    }

    /// # Errors
    /// What is no number.
    pub fn number<T: FromStr>(&self, name: &'static str) -> Result<Option<T>, ApiError> {
        let number = |value: &str| {
            let wrong = |_| ApiError::field(name, format!("{name} is `{value}`: use a whole number"));
            value.parse().map_err(wrong)
        };
        self.value(name).map(number).transpose()
    }

    /// The page of a list that is asked for: newest first, unless `order` is asc.
    ///
    /// # Errors
    /// A limit out of its range, another order, an item that is not in the list.
    pub fn page(&self, items: &'a [Item]) -> Result<Page<'a>, ApiError> {
        let limit = self.number("limit")?.unwrap_or(PAGE_ITEMS);
        if !(1..=PAGE_ITEMS_MAX).contains(&limit) {
            return Err(ApiError::field("limit", format!("limit is {limit}: use 1 to {PAGE_ITEMS_MAX}")));
        }
        let mut ordered: Vec<&Item> = items.iter().collect();
        match self.value("order") {
            None | Some("desc") => ordered.reverse(),
            Some("asc") => {}
            Some(other) => {
                return Err(ApiError::field("order", format!("order is `{other}`: use asc or desc")));
            }
        }
        let begin = match self.value("after") {
            None => 0,
            Some(id) => match ordered.iter().position(|item| item.id() == id) {
                Some(position) => position + 1,
                None => {
                    return Err(ApiError::field("after", format!("after is `{id}`: there is no such item")));
                }
            },
        };
        let has_more = ordered.len() - begin > limit;
        Ok(Page { items: ordered.split_off(begin).into_iter().take(limit).collect(), has_more })
    }
}
