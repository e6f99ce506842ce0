//! Bytes as a row of choices, so that any input is some made-up thing and a small change of it is a small change.

/// The bytes that are left. Behind their end every choice is the first.
#[derive(Debug, Clone)]
pub(crate) struct Choices<'d> {
    data: &'d [u8],
}

impl<'d> Choices<'d> {
    pub(crate) fn new(data: &'d [u8]) -> Self {
        Self { data }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.data.is_empty()
    }

    pub(crate) fn byte(&mut self) -> u8 {
        match self.data.split_first() {
            Some((first, rest)) => {
                self.data = rest;
                *first
            }
            None => 0,
        }
    }

    /// A number below `end`, which is at most 256.
    pub(crate) fn below(&mut self, end: usize) -> usize {
        usize::from(self.byte()) % end.max(1)
    }

    pub(crate) fn of<'l, T>(&mut self, list: &'l [T]) -> &'l T {
        let index = self.below(list.len());
        list.get(index).unwrap_or_else(|| panic!("nothing to choose from"))
    }

    pub(crate) fn u32(&mut self) -> u32 {
        u32::from_le_bytes([self.byte(), self.byte(), self.byte(), self.byte()])
    }

    /// Up to `most` bytes, as many as the first one says.
    pub(crate) fn bytes(&mut self, most: usize) -> &'d [u8] {
        let length = self.below(most + 1).min(self.data.len());
        let (taken, rest) = self.data.split_at(length);
        self.data = rest;
        taken
    }
}
