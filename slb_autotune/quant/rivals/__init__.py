"""The methods that the paper compares with, and stronger ones since: a file each."""
