//! Sorting with one body for all types: the standard library makes a few kilobytes of code for each, and the programs that
//! stand between an engine and runc are small. A heap sort, so that no order of a tenant's list makes it slow; not stable.

use std::cmp::Ordering;

/// A list whose items can be compared and swapped by their place.
trait Places {
    fn is_less(&self, a: usize, b: usize) -> bool;
    fn swap(&mut self, a: usize, b: usize);
}

struct Compared<'l, T, F>(&'l mut [T], F);

impl<T, F: Fn(&T, &T) -> Ordering> Places for Compared<'_, T, F> {
    fn is_less(&self, a: usize, b: usize) -> bool {
        self.0.get(a).zip(self.0.get(b)).is_some_and(|(a, b)| (self.1)(a, b).is_lt())
    }

    fn swap(&mut self, a: usize, b: usize) {
        self.0.swap(a, b);
    }
}

/// Sorts a list, rising.
pub fn sort<T: Ord>(list: &mut [T]) {
    sort_by(list, T::cmp);
}

/// Sorts a list by a comparison, rising. What compares equal stands in any order.
pub fn sort_by<T>(list: &mut [T], compare: impl Fn(&T, &T) -> Ordering) {
    let end = list.len();
    heap_sort(end, &mut Compared(list, compare));
}

fn heap_sort(end: usize, list: &mut dyn Places) {
    for top in (0..end / 2).rev() {
        sink(top, end, list);
    }
    for end in (1..end).rev() {
        list.swap(0, end);
        sink(0, end, list);
    }
}

/// Moves an item down until none below it is greater.
fn sink(mut top: usize, end: usize, list: &mut dyn Places) {
    loop {
        let (left, right) = (2 * top + 1, 2 * top + 2);
        if left >= end {
            return;
        }
        let greater = if right < end && list.is_less(left, right) { right } else { left };
        if !list.is_less(top, greater) {
            return;
        }
        list.swap(top, greater);
        top = greater;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn as_the_standard_library_does(mut list: Vec<u8>) {
            let mut expected = list.clone();
            expected.sort_unstable();
            sort(&mut list);
            prop_assert_eq!(list, expected);
        }
    }

    #[test]
    fn by_another_order() {
        let mut list = ["ccc", "a", "bb", ""];
        sort_by(&mut list, |a, b| b.len().cmp(&a.len()));
        assert_eq!(list, ["ccc", "bb", "a", ""]);
    }
}
