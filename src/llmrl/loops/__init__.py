"""The outer loops; which one runs follows from the parts."""
