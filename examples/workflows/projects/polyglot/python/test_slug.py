import json
import pathlib
import unittest

from slug import slug

CASES = json.loads((pathlib.Path(__file__).parent.parent / "cases.json").read_text(encoding="utf-8"))


class SlugTest(unittest.TestCase):
    def test_cases(self):
        for case in CASES:
            with self.subTest(case["text"]):
                self.assertEqual(slug(case["text"]), case["slug"])


if __name__ == "__main__":
    unittest.main()
