import unittest

from slug import slug


class SlugTest(unittest.TestCase):
    def test_words(self):
        self.assertEqual(slug("Hello World"), "hello-world")

    def test_punctuation_and_runs(self):
        self.assertEqual(slug("  It's  a -- test! "), "it-s-a-test")

    def test_empty(self):
        self.assertEqual(slug("!!!"), "")


if __name__ == "__main__":
    unittest.main()
