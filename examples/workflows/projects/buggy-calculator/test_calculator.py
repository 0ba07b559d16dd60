import unittest

from calculator import CalculatorError, evaluate


class EvaluateTest(unittest.TestCase):
    def test_numbers(self):
        self.assertEqual(evaluate("42"), 42)
        self.assertEqual(evaluate(" 2.5 "), 2.5)

    def test_precedence(self):
        self.assertEqual(evaluate("2 + 3 * 4"), 14)
        self.assertEqual(evaluate("(2 + 3) * 4"), 20)

    def test_sums_go_from_left_to_right(self):
        self.assertEqual(evaluate("10 - 3 - 4"), 3)
        self.assertEqual(evaluate("10 - 3 + 4"), 11)

    def test_products_go_from_left_to_right(self):
        self.assertEqual(evaluate("100 / 10 / 5"), 2)

    def test_negative_numbers(self):
        self.assertEqual(evaluate("-2 * -3"), 6)

    def test_division_by_zero_is_a_calculator_error(self):
        with self.assertRaises(CalculatorError):
            evaluate("1 / (2 - 2)")

    def test_nonsense_is_a_calculator_error(self):
        for text in ("", "2 +", "(1", "1 2", "two"):
            with self.subTest(text=text), self.assertRaises(CalculatorError):
                evaluate(text)


if __name__ == "__main__":
    unittest.main()
